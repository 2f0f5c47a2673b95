"""The one background thread that embeds donors and requests. No caller ever waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from semblend_core import Namespace
from semblend_dynamo.evidence.embedder import Document, Embedder
from semblend_dynamo.evidence.queues import Answers, Ask, Compared, DonorKey, Evidence, Inbox, Offer
from semblend_dynamo.evidence.vector_index import VectorIndex

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvidenceStats:
    """Counters since start; the last five are gauges."""

    indexed: int = 0
    answered: int = 0
    dropped_offers: int = 0
    """Not taken: queue full, closed or disabled."""
    dropped_asks: int = 0
    over_budget: int = 0
    """Offers left out because the vectors had reached ``max_index_bytes``."""
    forgotten: int = 0
    failures: int = 0
    """Tasks that raised, such as a detokenizer's error. The task is lost, nothing else."""
    expired_answers: int = 0
    queued: int = 0
    answers: int = 0
    donors: int = 0
    index_bytes: int = 0
    disabled: str | None = None
    """Why there is no evidence any more, such as a model that did not load; None while all is well."""


class EvidenceWorker:
    """Embeds offers and asks in the background and keeps the answers for a while.

    Threads: every public method may be called from any thread. ``close`` and ``wait_idle`` wait up to their
    timeout; all others return at once: the lock they take is never held while a model runs or an index is
    searched.

    A forgotten donor is out of every answer from the return of ``forget`` on, also of answers made before it,
    and an embedding still under way for it is thrown away. Nothing raises for a fault of the embedder.
    """

    def __init__(
        self,
        build_embedder: Callable[[], Embedder],
        *,
        queue_size: int = 256,
        min_similarity: float = 0.6,
        matches: int = 8,
        ann_threshold: int = 4096,
        max_index_bytes: int = 1 << 30,
        answer_limit: int = 1024,
        answer_lifetime_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``build_embedder`` is called on the worker's thread, when the first document arrives."""
        if queue_size < 1:
            raise ValueError(f"SEMBLEND_EMBED_QUEUE must be at least 1, got {queue_size}")
        if not 0 <= min_similarity <= 1:
            raise ValueError(f"SEMBLEND_MIN_SIMILARITY must be in [0, 1], got {min_similarity}")
        self._build_embedder = build_embedder
        self._min_similarity = min_similarity
        self._matches = matches
        self._ann_threshold = ann_threshold
        self._max_index_bytes = max_index_bytes
        # The worker's own, touched by no other thread.
        self._embedder: Embedder | None = None
        self._index: VectorIndex | None = None
        self._indexed: dict[DonorKey, int] = {}
        # Guarded by the condition's lock from here on.
        self._wake = threading.Condition()
        self._inbox = Inbox(queue_size)
        self._answers = Answers(answer_limit, answer_lifetime_s, clock)
        self._tickets: dict[DonorKey, int] = {}
        """Donors offered and not forgotten: the offer that counts."""
        self._removals: list[tuple[Namespace, str]] = []
        self._next_ticket = 0
        self._counts = EvidenceStats()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closing = False

    def offer(self, namespace: Namespace, donor_id: str, document: Document) -> bool:
        """Make a donor findable, later. False: dropped and counted. A second offer replaces the first."""
        with self._wake:
            offer = Offer(namespace, donor_id, document, self._next_ticket)
            if self._refuses() or not self._inbox.put_offer(offer):
                self._count(dropped_offers=1)
                return False
            self._next_ticket += 1
            self._tickets[offer.key] = offer.ticket
            self._notify()
            return True

    def forget(self, namespace: Namespace, donor_id: str) -> bool:
        """Make a donor unfindable, now and for good. False if it was not known. Never dropped."""
        key = (namespace.digest, donor_id)
        with self._wake:
            if self._tickets.pop(key, None) is None:
                return False
            self._inbox.discard_offer(key)
            self._count(forgotten=1)
            if self._thread is not None and not self._closing:
                self._removals.append((namespace, donor_id))
                self._notify()
            return True

    def ask(self, request_id: str, namespace: Namespace, document: Document) -> bool:
        """Start looking for donors like ``document``. False: dropped, counted. Replaces an earlier answer."""
        with self._wake:
            self._answers.discard(request_id)
            if self._refuses() or not self._inbox.put_ask(Ask(request_id, namespace, document)):
                self._count(dropped_asks=1)
                return False
            self._notify()
            return True

    def poll(self, request_id: str) -> tuple[Evidence, ...] | None:
        """Best first; empty: no donor is similar enough. None: under way, dropped, failed or expired."""
        with self._wake:
            findings = self._answers.get(request_id)
            if findings is None:
                return None
            return tuple(each.evidence for each in findings if self._tickets.get(each.key) == each.ticket)

    def stats(self) -> EvidenceStats:
        """A consistent snapshot; the size of the index is the one after the last finished task."""
        with self._wake:
            return replace(
                self._counts,
                queued=len(self._inbox),
                answers=len(self._answers),
                expired_answers=self._answers.expired,
            )

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or under way. For tests and tools. False after ``timeout_s``."""
        with self._wake:
            return self._wake.wait_for(lambda: not (self._busy or self._removals or len(self._inbox)), timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Drop what waits, end the thread. False: the embedder still ran after ``timeout_s``. Idempotent."""
        with self._wake:
            self._closing = True
            self._inbox.clear()
            self._removals.clear()
            self._wake.notify_all()
            thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    # Called with the lock held.

    def _refuses(self) -> bool:
        return self._closing or self._counts.disabled is not None

    def _count(self, **added: int) -> None:
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in added.items()})

    def _notify(self) -> None:
        if self._thread is None:  # started by the first task, so that an engine may fork before it
            self._thread = threading.Thread(target=self._run, name="semblend-evidence", daemon=True)
            self._thread.start()
        self._wake.notify_all()

    # On the worker's thread.

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._index is not None:
                    # Read here, where no search holds the index's lock: stats() must not wait for one.
                    self._counts = replace(self._counts, donors=len(self._index), index_bytes=self._index.nbytes)
                self._busy = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._closing or self._removals or len(self._inbox))
                if self._closing:
                    return
                removals, self._removals = self._removals, []
                task = self._inbox.take()
                self._busy = True
            try:
                # Removals first: an offer made after them may reuse the donor's id.
                self._apply(removals)
                if task is not None:
                    self._serve(task)
            except Exception as error:
                self._contain(error)

    def _apply(self, removals: list[tuple[Namespace, str]]) -> None:
        for namespace, donor_id in removals:
            if self._indexed.pop((namespace.digest, donor_id), None) is not None and self._index is not None:
                self._index.remove(namespace, donor_id)

    def _serve(self, task: Ask | Offer) -> None:
        if self._embedder is None:
            self._load()
        if self._embedder is None or self._index is None:
            return
        if isinstance(task, Offer):
            self._serve_offer(task, self._embedder, self._index)
        else:
            self._serve_ask(task, self._embedder, self._index)

    def _load(self) -> None:
        try:
            embedder = self._build_embedder()
            index = VectorIndex(embedder.dimension, ann_threshold=self._ann_threshold)
        except Exception as error:
            logger.error("no similarity evidence, everything else goes on: %s", error)
            with self._wake:
                self._counts = replace(self._counts, disabled=f"{type(error).__name__}: {error}")
                self._inbox.clear()
                self._tickets.clear()
            return
        self._embedder, self._index = embedder, index

    def _serve_offer(self, offer: Offer, embedder: Embedder, index: VectorIndex) -> None:
        if index.nbytes >= self._max_index_bytes:
            self._withdraw(offer)
            with self._wake:
                self._count(over_budget=1)
            return
        try:
            vectors = embedder.embed(offer.document)
            with self._wake:
                wanted = self._tickets.get(offer.key) == offer.ticket
            if wanted and vectors.shape[0]:
                # A forget from here on leaves a removal, which is applied before the next search.
                index.add(offer.namespace, offer.donor_id, vectors)
                self._indexed[offer.key] = offer.ticket
                with self._wake:
                    self._count(indexed=1)
            elif wanted:  # an empty document resembles nothing
                self._withdraw(offer)
        except Exception:
            self._withdraw(offer)
            raise

    def _serve_ask(self, ask: Ask, embedder: Embedder, index: VectorIndex) -> None:
        vectors = embedder.embed(ask.document)
        found = index.search(ask.namespace, vectors, self._matches)
        findings = tuple(
            Compared(Evidence(match.donor_id, min(1.0, match.similarity), embedder.name), key, self._indexed[key])
            for match in found
            if match.similarity >= self._min_similarity
            for key in [(ask.namespace.digest, match.donor_id)]
        )
        with self._wake:
            self._answers.put(ask.request_id, findings)
            self._count(answered=1)

    def _withdraw(self, offer: Offer) -> None:
        """Leave the donor unknown, and drop the vectors of an earlier offer that this one was to replace."""
        with self._wake:
            if self._tickets.get(offer.key) != offer.ticket:
                return  # forgotten or offered again meanwhile: that is dealt with in its turn
            del self._tickets[offer.key]
        self._apply([(offer.namespace, offer.donor_id)])

    def _contain(self, error: Exception) -> None:
        with self._wake:
            self._count(failures=1)
            first = self._counts.failures == 1
        # One line, then only the counter: a failing detokenizer would fail for every request.
        log = logger.warning if first else logger.debug
        log(
            "evidence for one document failed, further failures are only counted: %s: %s",
            type(error).__name__,
            error,
        )
