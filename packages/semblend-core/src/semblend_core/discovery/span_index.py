"""The span index: every run of tokens that some donor shares with a prompt, at any offset, without a model.

Donor tokens lie in one arena (see ``donor_table``); their fingerprints in chains (see ``fingerprint_chains``). A lookup
fingerprints the prompt, gathers candidates, groups them by diagonal, and compares tokens along the strongest diagonals.

Threads: writers are serialised by one lock; a second, held only for short steps, keeps them apart from readers. Growing
an array means copying it beside the old one, under the writers' lock alone, so a lookup never waits for a rebuild.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend_core.contract import Glimpse, TokenIds
from semblend_core.discovery.bucket_table import Tags
from semblend_core.discovery.donor_choice import DonorChoice, FoundRuns, RepeatedFingerprints, worth_choosing
from semblend_core.discovery.donor_table import DonorTable
from semblend_core.discovery.fingerprint import Geometry, Hashes, fingerprint, gram_hashes
from semblend_core.discovery.fingerprint_chains import Candidates, FingerprintChains
from semblend_core.discovery.keyed_tags import KeyedTags
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
        self._tags = KeyedTags()
        self._writers = threading.RLock()
        self._readers = threading.Lock()
        self._chains = FingerprintChains()
        self._donors = DonorTable()
        self._serials = itertools.count(1)

    def __len__(self) -> int:
        return len(self._donors)

    @property
    def nbytes(self) -> int:
        """Memory held for donors: their tokens, fingerprints and table."""
        return self._donors.nbytes() + self._chains.nbytes

    def bytes_of(self, serial: int) -> int:
        """What a donor holds by itself, its share of the table not counted. Not while others add or remove."""
        return self._donors.bytes_of(serial) + self._chains.page_bytes(self._donors.pages_of(serial).size)

    def prepare(self, tokens: TokenIds, scope: int) -> PreparedDonor:
        """Do the part of ``add`` that needs no lock."""
        positions, hashes = fingerprint(tokens, self.geometry)
        tags, positions = self._tags.in_order(hashes, positions, scope)
        return PreparedDonor(tokens, scope, positions, tags, hashes)

    def bytes_after_adding(self, donor: PreparedDonor) -> int:
        """``nbytes`` once ``donor`` is in."""
        donors = self._donors.nbytes(tokens_more=donor.tokens.size, donors_more=1)
        return donors + self._chains.bytes_after_inserting(donor.tags.size)

    def add(self, donor: PreparedDonor, serial: int | None = None) -> int:
        """Index a donor and return its serial. Its tokens are copied. A failure leaves the index as it was.

        ``serial``: for a caller that hands them out itself, since it must know them before a donor can be found.
        """
        serial = next(self._serials) if serial is None else serial
        with self._writers:
            place = self._donors.reserve(donor.tokens.size)
            try:
                put_chains_in_place = self._chains.prepare(donor.tags.size, _yield_to_other_threads)
                with self._readers:  # From here on nothing fails.
                    put_chains_in_place()
                    pages = self._chains.insert(donor.tags, place.start + donor.positions, place.number)
                    self._donors.put(place, donor.tokens, donor.scope, serial, pages)
            except BaseException:
                self._donors.give_back(place)
                raise
        return serial

    def remove(self, serial: int) -> None:
        """Forget a donor: its tokens can no longer be found, and its memory is free for others."""
        with self._writers:
            donor = self.prepare(self._donors.tokens_of(serial), self._donors.scope_of(serial))
            with self._readers:
                self._chains.remove(donor.tags, self._donors.pages_of(serial))
                self._donors.remove(serial)

    def tokens_of(self, serial: int) -> TokenIds | None:
        """A copy of a donor's tokens; None where it is not, or no longer, here."""
        with self._readers:
            if serial not in self._donors:
                return None
            copy = self._donors.tokens_of(serial).copy()
        copy.flags.writeable = False
        return copy

    def glimpse(self, query: TokenIds, scope: int) -> Glimpse | None:
        """By the newest donor of each fingerprint; no token is compared. None: donors are being changed just now."""
        prints = self._fingerprints(query)
        if not self._readers.acquire(blocking=False):
            return None
        try:
            newest = self._chains.newest(self._tags.of(prints.hashes, scope), prints.positions)
            newest = newest.where(self._donors.scope[newest.donor] == scope)
            lines = Diagonals.lines(newest.query, newest.donor, self._donors.positions(newest))
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
        tags = self._tags.of(prints.hashes, scope)
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
            donors = self._donors

            def usable(number: int) -> bool:
                return donors.scope.item(number) == scope and resident(donors.columns.serial.item(number))

            choice = DonorChoice(prompt, donors.columns, self._chains, usable)
            alike = choice.most_alike(pieces, [donors.number(run.donor) for run in pieces], repeated)
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
            if serial not in self._donors:
                return np.empty(0, np.int32), 0
            tokens = self._donors.tokens_of(serial)
            low, high = (0, tokens.size) if within is None else (max(0, within.start), within.stop)
            return tokens[low : min(high, low + MAX_ISLAND_WINDOW)].copy(), low

    def check_integrity(self) -> None:
        with self._writers, self._readers:
            self._chains.check_integrity()
            self._donors.check_integrity()

    def _fingerprints(self, query: TokenIds, glimpse: Glimpse | None = None) -> _Fingerprints:
        """Those that a glimpse has seen, if they are this query's."""
        seen = None if glimpse is None else glimpse.fingerprints
        if isinstance(seen, _Fingerprints) and seen.of_tokens == query.size:
            return seen
        return _Fingerprints(query.size, *fingerprint(query, self.geometry, self.geometry.query_repeats))

    def _stands_behind_other_text(self, prompt: TokenIds, piece: Run) -> bool:
        """Whether the text before the piece is another in its donor. In a piece that was cut off there it is not."""
        if piece.donor not in self._donors:
            return False
        common = min(piece.start, piece.donor_start, ISLAND_GRAM)  # A separator before both says nothing.
        here = prompt[piece.start - common : piece.start]
        before = self._donors.tokens_of(piece.donor)[piece.donor_start - common : piece.donor_start]
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
        found = found.where(self._donors.scope[found.donor] == scope)
        donors = self._donors.columns
        if known and found.query.size:
            hits = Diagonals.of_single_hits(found.query, found.donor, self._donors.positions(found))
            found = found.where(unexplained(query, donors, hits, known, self.geometry.gram))
        if not found.query.size:
            return [*known]
        diagonals = Diagonals.of(found.query, found.donor, self._donors.positions(found))
        strongest = diagonals.strongest(self.max_diagonals, donors.serial)
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
