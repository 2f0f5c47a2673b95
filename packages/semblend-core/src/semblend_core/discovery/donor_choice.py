"""Of the donors that hold a piece of the cover whole, the one whose text before it is most like the prompt's.

The KV of a passage carries what stood before it, so a donor that read alike there is closer to a cold prefill. Pieces
keep their place and length: only who gives them changes. Work is bounded, and done for all pieces at once: one
fingerprint of each leads to a few other donors, and a sample of what stands before the piece there is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend_core.contract import TokenIds
from semblend_core.discovery.fingerprint_chains import FingerprintChains, Links
from semblend_core.discovery.runs import DonorColumns, Ints, Run

REACH_TOKENS = 512
"""How far back text is compared: beyond the passage before."""
AT_THE_FRONT = 96
"""Where a piece stands behind fewer tokens than this, here as in its donor, no other donor can be much better."""
MOST_PIECES = 16
"""Of one cover, the longest: others keep their donor."""
MOST_OTHERS = 4
"""Donors per piece that are compared with its own."""
CLEARLY = 1 / 8
"""Likeness by which a donor must be ahead of another to be preferred: unrelated texts share common words, too."""
_BUCKETS = 8192
"""Token ids are told apart by their last bits: what collides is little, and alike for all donors."""
_NOBODY = -2
_BACK = np.arange(-REACH_TOKENS, 0)
_SAMPLED_BACK = _BACK.reshape(-1, 64)[:, -8:].ravel()
"""Of a donor's text an eighth is looked at, in runs of eight, since each place costs a cache line."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedFingerprints:
    """Fingerprints of a prompt that occur more than once among the donors, by where they did when they were found."""

    positions: Ints
    """In the prompt, ascending."""
    entries: Links
    """Of their newest occurrences."""


class FoundRuns(list[Run]):
    """Runs of a prompt, and the fingerprints by which more donors may be found that hold the same."""

    def __init__(
        self, runs: Sequence[Run] = (), repeated: RepeatedFingerprints | None = None, *, cut_short: bool = False
    ) -> None:
        super().__init__(runs)
        self.repeated = repeated
        self.cut_short = cut_short
        """There may be more: time was up before all donors were compared."""

    def behind(self, tokens: int) -> FoundRuns:
        """The same in a prompt that has so many tokens more in front."""
        if not tokens:
            return self
        runs = [run._replace(start=run.start + tokens, end=run.end + tokens) for run in self]
        repeated = self.repeated
        if repeated is not None:
            repeated = RepeatedFingerprints(repeated.positions + tokens, repeated.entries)
        return FoundRuns(runs, repeated, cut_short=self.cut_short)


def worth_choosing(cover: Sequence[Run], repeated: RepeatedFingerprints) -> list[int]:
    """The pieces, by their number in the cover, whose donor may matter: the longest of those behind other text."""
    last = repeated.positions.item(-1)
    behind = [
        at for at, run in enumerate(cover) if max(run.start, run.donor_start) >= AT_THE_FRONT and run.start <= last
    ]
    if len(behind) > MOST_PIECES:
        behind = sorted(sorted(behind, key=lambda at: -cover[at].length)[:MOST_PIECES])
    return behind


class DonorChoice:
    """What the index holds while it is locked, for one prompt. Donors are called by the index's numbers."""

    def __init__(
        self, prompt: TokenIds, donors: DonorColumns, chains: FingerprintChains, usable: Callable[[int], bool]
    ) -> None:
        """``usable``: whether a donor may be taken from."""
        self._prompt, self._donors, self._chains, self._usable = prompt, donors, chains, usable

    def most_alike(self, pieces: Sequence[Run], own: Sequence[int], repeated: RepeatedFingerprints) -> list[Run]:
        """``pieces``, each from the donor that read most alike before it, of those that hold all of it.

        ``own``: the number of each piece's donor. Where several read about equally alike, the donor of the piece before
        wins once a piece has moved, then the piece's own.
        """
        starts, ends, own_starts = np.array([(run.start, run.end, run.donor_start) for run in pieces]).T
        # In the middle: which fingerprints are kept near an end differs from donor to donor.
        at = np.minimum(repeated.positions.searchsorted((starts + ends) >> 1), repeated.positions.size - 1)
        positions = repeated.positions[at]
        # The piece's own donor comes first, then those that hold the fingerprint; -1: none.
        numbers, offsets = np.empty((2, len(pieces), 2 + MOST_OTHERS), np.int64)
        self._chains.from_entries(repeated.entries[at], offsets[:, 1:], numbers[:, 1:])
        numbers[positions >= ends] = -1
        numbers[:, 0] = own
        donor_starts = offsets - self._donors.start.take(numbers, mode="clip") + (starts - positions)[:, None]
        donor_starts[:, 0] = own_starts
        likeness = context_likeness(self._prompt, starts, self._donors, numbers, donor_starts)
        ahead = (likeness.max(axis=1) > likeness[:, 0] + CLEARLY).tolist()
        if not any(ahead):
            return [*pieces]
        options = [*zip(likeness.tolist(), numbers.tolist(), donor_starts.tolist(), strict=True)]
        chosen: list[Run] = []
        previous = _NOBODY  # Only once a piece has moved: the cover itself has chosen by who came before.
        for number, (run, (values, donors, begins)) in enumerate(zip(pieces, options, strict=True)):
            best = 0
            if ahead[number] or previous in donors:
                best = self._best(run, values, donors, begins, previous)
            if best:
                run = run._replace(donor=self._donors.serial.item(donors[best]), donor_start=begins[best])
            if best or previous != _NOBODY:
                previous = donors[best]
            chosen.append(run)
        return chosen

    def _best(self, run: Run, values: list[float], donors: list[int], begins: list[int], previous: int) -> int:
        """Which of the options, of which the first is the piece's own and the others begin with the newest."""
        left: list[int] = [*range(len(values))]
        while True:
            enough = max(values[at] for at in left) - CLEARLY
            alike = [at for at in left if values[at] >= enough]
            best: int = next((at for at in alike if donors[at] == previous), alike[0])
            if best == 0 or self._holds(run, donors[best], begins[best]):
                return best
            left.remove(best)

    def _holds(self, run: Run, donor: int, donor_start: int) -> bool:
        length = run.end - run.start
        if donor_start < 0 or donor_start + length > self._donors.length.item(donor) or not self._usable(donor):
            return False
        at = self._donors.start.item(donor) + donor_start
        return bool((self._prompt[run.start : run.end] == self._donors.arena[at : at + length]).all())


def context_likeness(
    prompt: TokenIds, starts: Ints, donors: DonorColumns, numbers: Ints, donor_starts: Ints
) -> npt.NDArray[np.float64]:
    """How much of the text before a piece is the same in the prompt and in donors, in any order: 0 to 1; no donor: -1.

    Twice the donor's tokens that the prompt has too, by all of both. Two empty contexts are alike; an empty and another
    are not. ``numbers`` of donors and ``donor_starts`` are [pieces, candidates].
    """
    ours = prompt.take(starts[:, None] + _BACK, mode="clip") & (_BUCKETS - 1)
    there = donor_starts[:, :, None] + _SAMPLED_BACK
    theirs = donors.arena.take(donors.start.take(numbers, mode="clip")[:, :, None] + there, mode="clip")
    theirs &= _BUCKETS - 1
    rows = np.arange(starts.size) * _BUCKETS
    known = np.zeros(starts.size * _BUCKETS, np.bool_)
    known[ours + rows[:, None]] = True
    shared = known.take(theirs + rows[:, None, None])
    within = there >= 0  # What lies before a donor is another's.
    shared &= within
    share = shared.sum(axis=2, dtype=np.float32) / np.maximum(within.sum(axis=2, dtype=np.float32), 1)
    tokens = np.maximum(np.minimum(donor_starts, REACH_TOKENS), 0)
    both = np.minimum(starts, REACH_TOKENS)[:, None] + tokens
    likeness = 2 * share * tokens / np.maximum(both, 1)
    likeness[both == 0] = 1.0
    likeness[numbers < 0] = -1.0
    return np.asarray(likeness)
