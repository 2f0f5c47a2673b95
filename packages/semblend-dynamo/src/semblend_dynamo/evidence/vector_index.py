"""Which donors resemble a document: exact while they are few, approximately proposed when they are many."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

from semblend_core import Namespace
from semblend_dynamo.evidence.donor_rows import DonorRows
from semblend_dynamo.evidence.embedder import EvidenceError, Vectors
from semblend_dynamo.evidence.window_graph import MAX_WINDOWS, WindowGraph

logger = logging.getLogger(__name__)

_CATCH_UP = 5
"""Donors moved into a new graph with each add: the switch costs many adds a little, not one a pause."""


@dataclass(frozen=True, slots=True)
class Match:
    """A donor and how much of the query it resembles."""

    donor_id: str
    similarity: float
    """Mean over the query's windows of the best cosine among the donor's windows. In [-1, 1]."""


class VectorIndex:
    """Donor vectors by namespace; a search sees the one it names. Every method may be called from any thread.

    The similarity of a match is always exact; above ``ann_threshold`` donors in a namespace the choice of
    which to score is approximate. Without usearch the search stays exact, and slower.
    """

    def __init__(self, dimension: int, *, ann_threshold: int = 4096) -> None:
        if dimension < 1:
            raise ValueError(f"dimension must be at least 1, got {dimension}")
        if ann_threshold < 1:
            raise ValueError(f"SEMBLEND_ANN_THRESHOLD must be at least 1, got {ann_threshold}")
        self._dimension = dimension
        self._ann_threshold = ann_threshold
        self._lock = threading.Lock()
        self._shelves: dict[str, _Shelf] = {}

    def __len__(self) -> int:
        """Donors in all namespaces."""
        with self._lock:
            return sum(len(shelf) for shelf in self._shelves.values())

    @property
    def nbytes(self) -> int:
        """Allocated vector memory: matrices with their spare capacity, and graphs; not ids and tables."""
        with self._lock:
            return sum(shelf.nbytes for shelf in self._shelves.values())

    def add(self, namespace: Namespace, donor_id: str, vectors: Vectors) -> None:
        """Store a donor's unit vectors (copied), in place of any it had."""
        self._check(vectors)
        if vectors.shape[0] == 0:
            raise ValueError(f"donor {donor_id!r} has no vectors: an empty document cannot be found again")
        if vectors.shape[0] > MAX_WINDOWS:
            raise ValueError(f"donor {donor_id!r} has {vectors.shape[0]} vectors, the limit is {MAX_WINDOWS}")
        with self._lock:
            if namespace.digest not in self._shelves:
                self._shelves[namespace.digest] = _Shelf(self._dimension, self._ann_threshold)
            self._shelves[namespace.digest].add(donor_id, vectors)

    def remove(self, namespace: Namespace, donor_id: str) -> bool:
        """Forget a donor, at once. False if it was not known."""
        with self._lock:
            shelf = self._shelves.get(namespace.digest)
            if shelf is None or not shelf.remove(donor_id):
                return False
            if not len(shelf):
                del self._shelves[namespace.digest]
            return True

    def search(self, namespace: Namespace, vectors: Vectors, k: int) -> list[Match]:
        """The ``k`` most similar donors, best first; equal ones by id. Empty for an empty query."""
        self._check(vectors)
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        with self._lock:
            shelf = self._shelves.get(namespace.digest)
            return shelf.search(vectors, k) if shelf is not None and vectors.shape[0] else []

    def is_approximate(self, namespace: Namespace) -> bool:
        """Whether a search in this namespace now goes through the graph."""
        with self._lock:
            shelf = self._shelves.get(namespace.digest)
            return shelf is not None and shelf.graph_ready

    def check_integrity(self) -> None:
        """Raise AssertionError if internal state is inconsistent."""
        with self._lock:
            for shelf in self._shelves.values():
                assert len(shelf), "an empty namespace is still held"
                shelf.check_integrity()

    def _check(self, vectors: Vectors) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self._dimension or vectors.dtype != np.float32:
            raise ValueError(
                f"vectors must be float32 [windows, {self._dimension}], got {vectors.dtype} {vectors.shape}"
            )
        # Written so that NaN fails it too.
        if not np.all(np.abs(np.einsum("ij,ij->i", vectors, vectors) - 1) < 1e-2):
            raise ValueError("vectors must have length one")


class _Shelf:
    """One namespace: the vectors, and a graph beside them when they are many. Guarded by the index's lock."""

    def __init__(self, dimension: int, ann_threshold: int) -> None:
        self._dimension = dimension
        self._threshold = ann_threshold
        self._rows = DonorRows(dimension)
        self._graph: WindowGraph | None = None
        self._backlog: deque[str] = deque()
        """Donors not yet in the graph, perhaps removed since."""
        self._graph_missing = False

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + (self._graph.nbytes if self._graph is not None else 0)

    @property
    def graph_ready(self) -> bool:
        return self._graph is not None and not self._backlog

    def add(self, donor_id: str, vectors: Vectors) -> None:
        self.remove(donor_id)
        self._rows.add(donor_id, vectors)
        if self._graph is not None:
            self._backlog.append(donor_id)
        elif len(self._rows) > self._threshold:
            self._start_graph()
        self._catch_up()

    def remove(self, donor_id: str) -> bool:
        if not self._rows.remove(donor_id):
            return False
        if self._graph is not None:
            self._graph.remove(donor_id)
            self._retire_graph()
        return True

    def search(self, query: Vectors, k: int) -> list[Match]:
        if self._graph is not None and not self._backlog:
            proposed = self._graph.propose(query, 8 * k + 32)
            ids, scores = self._rows.score_some(proposed, query)
        else:
            ids, scores = self._rows.score_all(query)
        ranked = sorted(zip(ids, scores.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
        return [Match(donor_id, similarity) for donor_id, similarity in ranked[:k]]

    def check_integrity(self) -> None:
        self._rows.check_integrity()
        if self._graph is None:
            assert not self._backlog
            return
        self._graph.check_integrity()
        waiting = {donor_id for donor_id in self._backlog if donor_id in self._rows}
        missing = {donor_id for donor_id in self._rows.ids() if donor_id not in self._graph}
        assert missing <= waiting, "a donor is in neither the graph nor its backlog"
        assert len(self._graph) == len(self._rows) - len(missing), "the graph holds a donor that was removed"

    def _start_graph(self) -> None:
        if self._graph_missing:
            return
        try:
            self._graph = WindowGraph(self._dimension)
        except EvidenceError as error:
            self._graph_missing = True
            logger.warning("more than SEMBLEND_ANN_THRESHOLD=%d donors, searching exactly: %s", self._threshold, error)
            return
        self._backlog = deque(self._rows.ids())

    def _catch_up(self) -> None:
        for _ in range(min(_CATCH_UP, len(self._backlog))):
            donor_id = self._backlog.popleft()
            if self._graph is not None and donor_id in self._rows and donor_id not in self._graph:
                self._graph.add(donor_id, self._rows.rows_of(donor_id))

    def _retire_graph(self) -> None:
        """Drop the graph when donors became few (half the threshold, so that it does not flap).

        Renew it when it is mostly removed windows: usearch keeps their copies until it reuses the places.
        """
        assert self._graph is not None
        if len(self._rows) <= self._threshold // 2:
            self._graph, self._backlog = None, deque()
        elif self._graph.removed_windows > self._graph.windows:
            self._start_graph()
