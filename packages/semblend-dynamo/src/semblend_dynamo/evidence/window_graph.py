"""An approximate nearest-neighbour graph over donor windows (usearch): proposes donors for exact scoring."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend_dynamo.evidence.embedder import EvidenceError, Vectors

_WINDOW_BITS = 20
"""A graph key is (donor serial, window number): the donor is known without a table of windows."""
MAX_WINDOWS = 1 << _WINDOW_BITS
"""The most windows one donor may have."""

_NEIGHBOURS = 128
"""Windows looked at for each query window: enough that one common passage does not hide the other donors."""


class WindowGraph:
    """Maps windows to donors by similarity. Holds half-precision copies. Not thread-safe.

    Serials are never used twice, so a stale neighbour can never be taken for a later donor of the same id.
    """

    def __init__(self, dimension: int) -> None:
        self._index = _usearch().Index(ndim=dimension, metric="cos", dtype="f16", expansion_add=64, expansion_search=64)
        self._serials = itertools.count()
        self._donors: dict[int, tuple[str, int]] = {}
        """Serial to donor and its number of windows."""
        self._by_id: dict[str, int] = {}
        self.removed_windows = 0

    def __len__(self) -> int:
        return len(self._donors)

    def __contains__(self, donor_id: object) -> bool:
        return donor_id in self._by_id

    @property
    def windows(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        return int(self._index.memory_usage)

    def add(self, donor_id: str, vectors: Vectors) -> None:
        """Insert a donor that is not there yet."""
        serial = next(self._serials)
        self._index.add(_keys(serial, vectors.shape[0]), vectors, threads=1)
        self._donors[serial] = (donor_id, vectors.shape[0])
        self._by_id[donor_id] = serial

    def remove(self, donor_id: str) -> None:
        serial = self._by_id.pop(donor_id, None)
        if serial is None:
            return
        _, windows = self._donors.pop(serial)
        self._index.remove(_keys(serial, windows))
        self.removed_windows += windows

    def propose(self, query: Vectors, count: int) -> list[str]:
        """Up to ``count`` donors, those first whose windows were found nearest to the most of the query."""
        matches = self._index.search(query, max(count, _NEIGHBOURS), threads=1)
        found: dict[int, float] = {}
        keys, distances = np.atleast_2d(matches.keys), np.atleast_2d(matches.distances)
        counts = np.atleast_1d(getattr(matches, "counts", [keys.shape[1]]))
        for row, row_distances, valid in zip(keys, distances, counts, strict=True):
            for serial, similarity in _best_per_donor(row[:valid], row_distances[:valid]):
                found[serial] = found.get(serial, 0.0) + similarity
        ranked = sorted(found, key=lambda serial: -found[serial])
        return [self._donors[serial][0] for serial in ranked if serial in self._donors][:count]

    def check_integrity(self) -> None:
        assert {donor_id: serial for serial, (donor_id, _) in self._donors.items()} == self._by_id
        assert sum(windows for _, windows in self._donors.values()) == len(self._index)


def _best_per_donor(keys: npt.NDArray[np.uint64], distances: npt.NDArray[np.float32]) -> list[tuple[int, float]]:
    # Nearest first, so the first window seen of a donor is its best.
    serials, first = np.unique(keys >> np.uint64(_WINDOW_BITS), return_index=True)
    return [(int(serial), 1.0 - float(distances[at])) for serial, at in zip(serials, first, strict=True)]


def _keys(serial: int, windows: int) -> npt.NDArray[np.uint64]:
    return np.arange(windows, dtype=np.uint64) + np.uint64(serial << _WINDOW_BITS)


def _usearch() -> Any:
    try:
        from usearch import index
    except ImportError as error:
        raise EvidenceError("approximate search needs usearch: pip install 'semblend-dynamo[ann]'") from error
    return index
