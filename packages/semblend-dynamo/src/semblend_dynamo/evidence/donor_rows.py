"""The vectors of one namespace's donors in one matrix, searched exactly."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from semblend_dynamo.evidence.embedder import Vectors

_QUERY_CHUNK = 64
"""Query windows multiplied at a time: bounds the scratch memory to 256 bytes per stored row."""


class DonorRows:
    """Each donor holds a run of consecutive rows. Not thread-safe.

    A removed donor's rows are zeroed at once and given back when more rows are dead than alive, so that
    removing costs constant time on average.
    """

    def __init__(self, dimension: int) -> None:
        self._matrix = np.zeros((0, dimension), dtype=np.float32)
        self._used = 0
        self._dead = 0
        self._starts: list[int] = []
        self._ids: list[str | None] = []
        """Owner of the run that begins at the same index of ``_starts``; None: dead."""
        self._slots: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, donor_id: object) -> bool:
        return donor_id in self._slots

    @property
    def nbytes(self) -> int:
        """Allocated, spare capacity included."""
        return self._matrix.nbytes

    def ids(self) -> list[str]:
        return list(self._slots)

    def rows_of(self, donor_id: str) -> Vectors:
        """A view, valid until the next change."""
        start, end = self._run(self._slots[donor_id])
        return self._matrix[start:end]

    def add(self, donor_id: str, vectors: Vectors) -> None:
        """Append a donor that is not there yet."""
        end = self._used + vectors.shape[0]
        if end > self._matrix.shape[0]:
            self._grow(end)
        self._matrix[self._used : end] = vectors
        self._slots[donor_id] = len(self._ids)
        self._starts.append(self._used)
        self._ids.append(donor_id)
        self._used = end

    def remove(self, donor_id: str) -> bool:
        slot = self._slots.pop(donor_id, None)
        if slot is None:
            return False
        start, end = self._run(slot)
        self._matrix[start:end] = 0
        self._ids[slot] = None
        self._dead += end - start
        if self._dead > self._used - self._dead:
            self._compact()
        return True

    def score_all(self, query: Vectors) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Every donor and its similarity to ``query``."""
        alive = [slot for slot, owner in enumerate(self._ids) if owner is not None]
        if not alive:
            return [], np.empty(0, dtype=np.float32)
        scores = mean_of_best(self._matrix[: self._used], np.asarray(self._starts), query)
        return [owner for owner in self._ids if owner is not None], scores[alive]

    def score_some(self, donor_ids: Iterable[str], query: Vectors) -> tuple[list[str], npt.NDArray[np.float32]]:
        """The same for the donors named."""
        chosen = list(donor_ids)
        if not chosen:
            return [], np.empty(0, dtype=np.float32)
        blocks = [self.rows_of(donor_id) for donor_id in chosen]
        starts = np.cumsum([0] + [block.shape[0] for block in blocks[:-1]])
        return chosen, mean_of_best(np.concatenate(blocks), starts, query)

    def check_integrity(self) -> None:
        assert self._starts == sorted(self._starts)
        assert len(self._starts) == len(self._ids)
        assert {owner: slot for slot, owner in enumerate(self._ids) if owner is not None} == self._slots
        lengths = [end - start for start, end in map(self._run, range(len(self._ids)))]
        assert all(length > 0 for length in lengths)
        assert sum(lengths) == self._used <= self._matrix.shape[0]
        dead = [slot for slot, owner in enumerate(self._ids) if owner is None]
        assert sum(lengths[slot] for slot in dead) == self._dead <= self._used - self._dead
        for slot in dead:
            start, end = self._run(slot)
            assert not self._matrix[start:end].any(), "a removed donor's vectors are still there"

    def _run(self, slot: int) -> tuple[int, int]:
        end = self._starts[slot + 1] if slot + 1 < len(self._starts) else self._used
        return self._starts[slot], end

    def _grow(self, needed: int) -> None:
        grown = np.zeros((max(needed, self._matrix.shape[0] * 3 // 2), self._matrix.shape[1]), dtype=np.float32)
        grown[: self._used] = self._matrix[: self._used]
        self._matrix = grown

    def _compact(self) -> None:
        kept = [(donor_id, self.rows_of(donor_id)) for donor_id in self._slots]
        fresh = DonorRows(self._matrix.shape[1])
        fresh._grow(max(1, self._used - self._dead))
        for donor_id, rows in kept:
            fresh.add(donor_id, rows)
        self.__dict__.update(fresh.__dict__)


def mean_of_best(rows: Vectors, starts: npt.NDArray[np.intp], query: Vectors) -> npt.NDArray[np.float32]:
    """For each run of ``rows``: the mean over query windows of the best cosine in the run.

    The mean, because the question is how much of the *query* the donor resembles: under a maximum, one shared
    system prompt would make every donor look perfect. The best row, because a passage may lie anywhere in it.
    """
    total = np.zeros(len(starts), dtype=np.float32)
    for begin in range(0, query.shape[0], _QUERY_CHUNK):
        cosines = rows @ query[begin : begin + _QUERY_CHUNK].T
        total += np.maximum.reduceat(cosines, starts, axis=0).sum(axis=1)
    return total / np.float32(query.shape[0])
