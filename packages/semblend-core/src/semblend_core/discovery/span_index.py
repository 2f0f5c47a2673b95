"""The span index: every run of tokens that some donor shares with a prompt, at any offset, without a model.

Donor tokens lie in one arena; their fingerprints in chains (see ``fingerprint_chains``). A lookup fingerprints the
prompt, gathers candidates, groups them by diagonal, and compares tokens along the strongest diagonals.

Threads: writers are serialised by one lock; a second, held only for short steps, keeps them apart from readers. Growing
an array means copying it beside the old one, under the writers' lock alone, so a lookup never waits for a rebuild.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from semblend_core.contract import Glimpse, TokenIds
from semblend_core.discovery.bucket_table import BucketTable, Tags
from semblend_core.discovery.donor_choice import DonorChoice, FoundRuns, RepeatedFingerprints, worth_choosing
from semblend_core.discovery.fingerprint import Geometry, Hashes, fingerprint, gram_hashes
from semblend_core.discovery.fingerprint_chains import Candidates, FingerprintChains
from semblend_core.discovery.growable import ExtentAllocator, grown
from semblend_core.discovery.runs import Diagonals, DonorColumns, Run
from semblend_core.discovery.search import ENDLESS, Patience, near_gaps, search_runs, unexplained

ISLAND_GRAM = 16
"""Shortest run that ``islands`` recovers, in tokens."""
SCATTERED_TOKENS = 384
"""Tokens per donor, on average, below which a prompt counts as scattered over donors."""
DEEPEST = 4
"""How many times as far a chain is followed where only a few have to be."""
MOST_CANDIDATES = 4096
"""Hits of older donors that are few in this sense."""
MAX_ISLAND_WINDOW = 32_768
"""Most donor tokens that one call of ``islands`` searches: it must stay within a lookup's time."""
_POSITION_BITS = np.uint64(32)
_POSITION_MASK = np.uint64(0xFFFFFFFF)
MAX_ARENA_TOKENS = 2**32 - 1
"""Offsets into the arena are 32-bit."""


@dataclass(frozen=True, slots=True)
class PreparedDonor:
    """A donor's tokens with their fingerprints, sorted by tag and, among equal tags, by position."""

    tokens: TokenIds
    scope: int
    positions: npt.NDArray[np.int64]
    tags: Tags
    hashes: Hashes
    """The fingerprints as they are in every scope, in the order of their positions."""


@dataclass(frozen=True, slots=True)
class _Fingerprints:
    """A query's, as they are in every scope."""

    of_tokens: int
    positions: npt.NDArray[np.int64]
    hashes: Hashes


class SpanIndex:
    """Each donor gets a serial, ascending and never reused. ``scope`` keeps namespaces apart."""

    def __init__(self, geometry: Geometry, *, depth: int = 8, max_diagonals: int = 256) -> None:
        self.geometry = geometry
        self.depth = depth
        """Newest donors considered per fingerprint."""
        self.max_diagonals = max_diagonals
        self._key = secrets.token_bytes(16)
        self._writers = threading.RLock()
        self._readers = threading.Lock()
        self._chains = FingerprintChains()
        self._arena: TokenIds = np.zeros(0, np.int32)
        self._extents = ExtentAllocator()
        self._start: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._length: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._scope: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._serial: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        # Columns are addressed by number, which is reused; the outside knows serials only, so that an answer
        # can never be taken for a donor that came later to the same number.
        self._numbers: dict[int, int] = {}
        self._pages: dict[int, npt.NDArray[np.int32]] = {}
        self._free_numbers: list[int] = []
        self._serials = itertools.count(1)

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def nbytes(self) -> int:
        """Memory held for donors: their tokens, fingerprints and table."""
        return self._extents.used * 4 + self._chains.nbytes + 32 * len(self._pages)

    def bytes_of(self, serial: int) -> int:
        """What a donor holds by itself, its share of the table not counted. Not while others add or remove."""
        number = self._numbers[serial]
        return 4 * int(self._length[number]) + self._chains.page_bytes(self._pages[number].size) + 32

    def prepare(self, tokens: TokenIds, scope: int) -> PreparedDonor:
        """Do the part of ``add`` that needs no lock."""
        positions, hashes = fingerprint(tokens, self.geometry)
        tags = self._tags(hashes, scope)
        # Tag and position in one word: sorting words is several times faster than finding a stable order.
        words = tags.astype(np.uint64)
        words <<= _POSITION_BITS
        words |= positions.view(np.uint64)
        words.sort()
        return PreparedDonor(
            tokens, scope, (words & _POSITION_MASK).view(np.int64), (words >> _POSITION_BITS).astype(np.uint32), hashes
        )

    def bytes_after_adding(self, donor: PreparedDonor) -> int:
        """``nbytes`` once ``donor`` is in."""
        return (
            (self._extents.used + donor.tokens.size) * 4
            + self._chains.bytes_after_inserting(donor.tags.size)
            + 32 * (len(self._pages) + 1)
        )

    def add(self, donor: PreparedDonor, serial: int | None = None) -> int:
        """Index a donor and return its serial. Its tokens are copied. A failure leaves the index as it was.

        ``serial``: for a caller that hands them out itself, since it must know them before a donor can be found.
        """
        serial = next(self._serials) if serial is None else serial
        with self._writers:
            start = self._extents.allocate(donor.tokens.size)
            try:
                self._add_at(start, donor, serial)
            except BaseException:
                self._extents.free(start, donor.tokens.size)
                raise
        return serial

    def _add_at(self, start: int, donor: PreparedDonor, serial: int) -> None:
        end = start + donor.tokens.size
        if end > MAX_ARENA_TOKENS:
            raise MemoryError(f"the token arena holds at most {MAX_ARENA_TOKENS} tokens")
        number = self._free_numbers[-1] if self._free_numbers else len(self._pages)
        # Whatever may run out of memory comes first; from the readers' lock on nothing fails.
        arena = grown(self._arena, end)
        put_chains_in_place = self._chains.prepare(donor.tags.size, _yield_to_other_threads)
        columns = [grown(column, number + 1) for column in (self._start, self._length, self._scope, self._serial)]
        with self._readers:
            self._arena = arena
            self._start, self._length, self._scope, self._serial = columns
            put_chains_in_place()
            arena[start:end] = donor.tokens
            self._start[number], self._length[number] = start, donor.tokens.size
            self._scope[number], self._serial[number] = donor.scope, serial
            self._pages[number] = self._chains.insert(donor.tags, start + donor.positions, number)
            self._numbers[serial] = number
            if self._free_numbers:
                self._free_numbers.pop()

    def remove(self, serial: int) -> None:
        """Forget a donor: its tokens can no longer be found, and its memory is free for others."""
        with self._writers:
            number = self._numbers[serial]
            start, length = int(self._start[number]), int(self._length[number])
            donor = self.prepare(self._arena[start : start + length], int(self._scope[number]))
            with self._readers:
                self._chains.remove(donor.tags, self._pages.pop(number))
                self._arena[start : start + length] = 0  # Prompts are not left lying around.
                self._extents.free(start, length)
                self._length[number], self._scope[number] = 0, -1
                self._free_numbers.append(number)
                del self._numbers[serial]

    def tokens_of(self, serial: int) -> TokenIds | None:
        """A copy of a donor's tokens; None where it is not, or no longer, here."""
        with self._readers:
            number = self._numbers.get(serial)
            if number is None:
                return None
            start = int(self._start[number])
            copy = self._arena[start : start + int(self._length[number])].copy()
            copy.flags.writeable = False
            return copy

    def glimpse(self, query: TokenIds, scope: int) -> Glimpse | None:
        """By the newest donor of each fingerprint; no token is compared. None: donors are being changed just now."""
        prints = self._fingerprints(query)
        if not self._readers.acquire(blocking=False):
            return None
        try:
            newest = self._chains.newest(self._tags(prints.hashes, scope), prints.positions)
            newest = newest.where(self._scope[newest.donor] == scope)
            lines = Diagonals.lines(newest.query, newest.donor, newest.offset - self._start[newest.donor])
        finally:
            self._readers.release()
        found = newest.query.size
        places = 1 + int(np.count_nonzero(lines[1:] != lines[:-1])) if found else 0
        return Glimpse(places, found / max(1, prints.positions.size), prints)

    def find(
        self,
        query: TokenIds,
        scope: int,
        min_run: int,
        *,
        deadline: float | None = None,
        glimpse: Glimpse | None = None,
    ) -> FoundRuns | None:
        """Maximal runs of at least ``min_run`` tokens, unsorted and possibly overlapping. None: out of time.

        Half of the time is for donors beyond the newest: what was found by then is enough.
        """
        patience = Patience(None if deadline is None else (time.perf_counter() + deadline) / 2)
        prints = self._fingerprints(query, glimpse)
        tags = self._tags(prints.hashes, scope)
        if not self._readers.acquire(timeout=_time_left(deadline)):
            return None
        try:
            newest = self._chains.newest(tags, prints.positions)
            if not newest.query.size:
                return FoundRuns()
            runs = self._runs(query, newest, scope, min_run)
            if deadline is not None and time.perf_counter() > deadline:
                return None
            repeated = self._chains.with_an_older(newest)
            if not repeated.query.size:
                return FoundRuns(_long(runs, min_run))
            runs = self._with_older_donors(query, newest, scope, min_run, runs, patience)
            by_repeats = RepeatedFingerprints(repeated.query, repeated.entry)
            return FoundRuns(_long(runs, min_run), by_repeats, cut_short=patience.ended)
        finally:
            self._readers.release()

    def most_alike(
        self,
        prompt: TokenIds,
        scope: int,
        cover: list[Run],
        repeated: RepeatedFingerprints,
        resident: Callable[[int], bool],
        *,
        deadline: float | None = None,
    ) -> list[Run]:
        """``cover``, each piece from the donor that read most alike before it. Out of time: ``cover`` itself.

        ``repeated``: what ``find`` said. ``resident``: whether a donor can be had, by its serial.
        """
        which = worth_choosing(cover, repeated)
        if not which or not self._readers.acquire(timeout=_time_left(deadline)):
            return cover
        try:
            which = [at for at in which if self._stands_behind_other_text(prompt, cover[at])]
            if not which:
                return cover
            pieces = [cover[at] for at in which]
            donors = DonorColumns(self._arena, self._start, self._length, self._serial)

            def usable(number: int) -> bool:
                return self._scope.item(number) == scope and resident(self._serial.item(number))

            choice = DonorChoice(prompt, donors, self._chains, usable)
            alike = choice.most_alike(pieces, [self._numbers[run.donor] for run in pieces], repeated)
        finally:
            self._readers.release()
        chosen = [*cover]
        for at, run in zip(which, alike, strict=True):
            chosen[at] = run
        return chosen

    def islands(
        self, query: TokenIds, wanted: npt.NDArray[np.int64], serial: int, min_run: int, within: range | None = None
    ) -> list[Run]:
        """Runs of one donor around the ``wanted`` query positions, found without thinning.

        Where text was edited, what is left between edits is often too short to be sure of a kept fingerprint. With the
        donor known, all of its k-grams can be compared; ``within`` narrows that to a range of its positions.
        """
        hashes = gram_hashes(query, ISLAND_GRAM)
        wanted = wanted[wanted < hashes.size]
        window, offset = self._window(serial, within)
        donor_hashes = gram_hashes(window, ISLAND_GRAM)
        if not donor_hashes.size or not wanted.size:
            return []
        order = np.argsort(donor_hashes)
        ordered = donor_hashes[order]
        # Sorted needles make the binary searches walk the haystack in order, several times faster.
        wanted = wanted[np.argsort(hashes[wanted])]
        sought = hashes[wanted]
        at = np.minimum(np.searchsorted(ordered, sought), ordered.size - 1)
        hit = (ordered[at] == sought).nonzero()[0]
        if not hit.size:
            return []
        hit = hit[np.argsort(wanted[hit])]
        diagonals = Diagonals.of(wanted[hit], np.zeros(hit.size, np.int64), order[at[hit]])
        one = np.array([serial])
        strongest = diagonals.strongest(4 * self.max_diagonals, one)
        alone = DonorColumns(window, np.zeros(1, np.int64), np.array([window.size]), one)
        runs = self._searched(query, alone, strongest, min_run)
        return [run._replace(donor_start=run.donor_start + offset) for run in _long(runs, min_run)]

    def _window(self, serial: int, within: range | None) -> tuple[TokenIds, int]:
        """A copy of part of a donor, so that no lock is held while it is searched, and where that part begins."""
        with self._readers:
            number = self._numbers.get(serial)
            if number is None:
                return np.empty(0, np.int32), 0
            start, length = int(self._start[number]), int(self._length[number])
            low, high = (0, length) if within is None else (max(0, within.start), min(length, within.stop))
            high = min(high, low + MAX_ISLAND_WINDOW)
            return self._arena[start + low : start + high].copy(), low

    def check_integrity(self) -> None:
        with self._writers, self._readers:
            self._chains.check_integrity()
            self._extents.check_integrity()
            assert self._extents.used == sum(int(self._length[n]) for n in self._pages), "arena does not add up"
            assert not set(self._free_numbers) & set(self._pages), "a number is free and in use"

    def _fingerprints(self, query: TokenIds, glimpse: Glimpse | None = None) -> _Fingerprints:
        """Those that a glimpse has seen, if they are this query's."""
        seen = None if glimpse is None else glimpse.fingerprints
        if isinstance(seen, _Fingerprints) and seen.of_tokens == query.size:
            return seen
        return _Fingerprints(query.size, *fingerprint(query, self.geometry, self.geometry.query_repeats))

    def _tags(self, hashes: Hashes, scope: int) -> Tags:
        """Of one namespace, in this process. Others may collide with them, as any hash may; the scope check follows.

        Nobody can make texts whose tags crowd one part of the table, or stand before those of another namespace.
        """
        secret = blake2b(scope.to_bytes(8, "little"), digest_size=12, key=self._key).digest()
        before, factor, after = np.frombuffer(secret, np.uint32)
        tags = hashes ^ before
        tags *= factor | np.uint32(1)
        tags ^= tags >> np.uint32(15)
        tags *= after | np.uint32(1)
        return BucketTable.usable(tags)

    def _stands_behind_other_text(self, prompt: TokenIds, piece: Run) -> bool:
        """Whether the text before the piece is another in its donor. In a piece that was cut off there it is not."""
        number = self._numbers.get(piece.donor)
        if number is None:
            return False
        common = min(piece.start, piece.donor_start, ISLAND_GRAM)  # A separator before both says nothing.
        there = self._start.item(number) + piece.donor_start
        here, before = prompt[piece.start - common : piece.start], self._arena[there - common : there]
        return common < ISLAND_GRAM or bool((here != before).any())

    def _with_older_donors(
        self,
        query: TokenIds,
        newest: Candidates,
        scope: int,
        min_run: int,
        runs: list[Run],
        patience: Patience,
    ) -> list[Run]:
        """``runs`` of the newest donors, and what older ones add to them."""
        if _scattered(runs) and not patience.is_over():
            deeper = self._runs(query, self._chains.with_older(newest, self.depth), scope, min_run, patience=patience)
            runs = [*dict.fromkeys([*deeper, *runs])]
        # Where the newest hold nothing of use, or another version of the text, older ones may hold more.
        gram, margin = self.geometry.gram, self.geometry.window
        left = newest.where(near_gaps(newest.query, _long(runs, min_run), gram, margin, query.size))
        if not left.query.size or patience.is_over():
            return runs
        depth = min(max(self.depth, MOST_CANDIDATES // left.query.size), DEEPEST * self.depth)
        older = self._chains.with_older(left, depth)
        return self._runs(query, older, scope, min_run, known=runs, patience=patience)

    def _runs(
        self,
        query: TokenIds,
        found: Candidates,
        scope: int,
        min_run: int,
        known: Sequence[Run] = (),
        patience: Patience = ENDLESS,
    ) -> list[Run]:
        found = found.where(self._scope[found.donor] == scope)
        donors = DonorColumns(self._arena, self._start, self._length, self._serial)
        if known and found.query.size:
            hits = Diagonals.of_single_hits(found.query, found.donor, found.offset - self._start[found.donor])
            found = found.where(unexplained(query, donors, hits, known, self.geometry.gram))
        if not found.query.size:
            return [*known]
        diagonals = Diagonals.of(found.query, found.donor, found.offset - self._start[found.donor])
        strongest = diagonals.strongest(self.max_diagonals, self._serial)
        return self._searched(query, donors, strongest, min_run, known, patience)

    def _searched(
        self,
        query: TokenIds,
        donors: DonorColumns,
        diagonals: Diagonals,
        min_run: int,
        known: Sequence[Run] = (),
        patience: Patience = ENDLESS,
    ) -> list[Run]:
        limits = {"gram": self.geometry.gram, "margin": self.geometry.window, "min_run": min_run}
        return search_runs(query, donors, diagonals, **limits, known=known, patience=patience)


def _long(runs: Sequence[Run], min_run: int) -> list[Run]:
    return [run for run in runs if run.end - run.start >= min_run]


def _scattered(runs: list[Run]) -> bool:
    """Whether the newest donors hold the prompt in small parts; an older one may then hold more of it in one piece."""
    return sum(run.length for run in runs) < SCATTERED_TOKENS * len({run.donor for run in runs})


def _time_left(deadline: float | None) -> float:
    return -1 if deadline is None else max(0.0, deadline - time.perf_counter())


def _yield_to_other_threads() -> None:
    time.sleep(0)
