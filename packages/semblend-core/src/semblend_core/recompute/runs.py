"""Runs of a prompt's positions as arrays: a search weighs thousands of them, and makes objects of few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend_core.recompute.reuse import Mask


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """[start, end) of each, in order and apart."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, mask: Mask) -> Runs:
        """Of the positions that are in ``mask``."""
        framed = np.zeros(mask.size + 2, np.bool_)
        framed[1:-1] = mask
        edges = np.flatnonzero(framed[1:] != framed[:-1])
        return cls(edges[::2], edges[1::2])

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[int, int]]) -> Runs:
        starts, ends = np.array(pairs, np.int64).reshape(-1, 2).T
        return cls(starts, ends)

    @property
    def count(self) -> int:
        return int(self.starts.size)

    @property
    def tokens(self) -> int:
        return int(self.ends.sum() - self.starts.sum())

    @property
    def between(self) -> npt.NDArray[np.int64]:
        """Positions between each and the next."""
        return self.starts[1:] - self.ends[:-1]

    def before(self, end: int) -> Runs:
        """What lies in front of ``end``."""
        count = int(np.searchsorted(self.starts, end))
        return Runs(self.starts[:count], np.minimum(self.ends[:count], end))

    def joined(self, within: int) -> Runs:
        """Those with at most ``within`` positions between them become one, which has these too."""
        breaks = np.flatnonzero(self.between > within)
        if breaks.size >= self.count - 1:
            return self
        return Runs(self.starts[np.append(0, breaks + 1)], self.ends[np.append(breaks, -1)])

    def as_pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.starts.tolist(), self.ends.tolist(), strict=True))
