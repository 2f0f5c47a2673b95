"""The evidence worker: nobody waits for it, nothing forgotten comes back, and its faults stay its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from semblend_core import Namespace
from semblend_dynamo.evidence import Document, EvidenceWorker, JaccardEmbedder, Vectors

LONG = 30.0
"""Seconds after which a wait is a failure. Nothing here asserts how long anything took."""


class GatedEmbedder(JaccardEmbedder):
    """The real Jaccard embedder behind a gate: it stands still inside ``embed`` until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.threads: set[int] = set()

    def embed(self, document: Document) -> Vectors:
        self.threads.add(threading.get_ident())
        self.entered.release()
        assert self.gate.wait(LONG)
        return super().embed(document)


def document(seed: int, length: int = 400) -> Document:
    return Document(np.random.default_rng(seed).integers(0, 50_000, length, dtype=np.int32))


def ids(worker: EvidenceWorker, request_id: str) -> list[str]:
    evidence = worker.poll(request_id)
    assert evidence is not None, f"no answer: {worker.stats()}"
    return [each.donor_id for each in evidence]


@pytest.fixture
def worker() -> Iterator[EvidenceWorker]:
    worker = EvidenceWorker(JaccardEmbedder)
    yield worker
    assert worker.close(LONG)


@pytest.fixture
def embedder() -> GatedEmbedder:
    return GatedEmbedder()


@pytest.fixture
def gated(embedder: GatedEmbedder) -> Iterator[EvidenceWorker]:
    worker = EvidenceWorker(lambda: embedder, queue_size=4)
    yield worker
    embedder.gate.set()
    assert worker.close(LONG)


def test_an_offered_donor_is_evidence_for_a_like_request(worker: EvidenceWorker, namespace: Namespace) -> None:
    assert worker.offer(namespace, "like", document(1))
    assert worker.offer(namespace, "unlike", document(2))
    assert worker.wait_idle(LONG)
    changed = np.concatenate([document(3, 20).token_ids, document(1).token_ids])
    assert worker.ask("r", namespace, Document(changed))
    assert worker.wait_idle(LONG)
    (evidence,) = worker.poll("r") or ()
    assert (evidence.donor_id, evidence.method) == ("like", "jaccard")
    assert 0.6 <= evidence.similarity <= 1.0
    assert worker.poll("r") == (evidence,), "an answer can be read again"
    stats = worker.stats()
    assert (stats.indexed, stats.answered, stats.donors, stats.queued) == (2, 1, 2, 0)
    assert stats.index_bytes >= 2 * 256 * 4


def test_other_tenants_find_nothing(worker: EvidenceWorker, make_namespace: Callable[[str | None], Namespace]) -> None:
    worker.offer(make_namespace("mine"), "d", document(1))
    worker.wait_idle(LONG)
    worker.ask("r", make_namespace("theirs"), document(1))
    worker.wait_idle(LONG)
    assert worker.poll("r") == ()


def test_no_call_waits_while_the_embedder_is_busy(
    gated: EvidenceWorker, embedder: GatedEmbedder, namespace: Namespace
) -> None:
    assert gated.offer(namespace, "busy", document(0))
    assert embedder.entered.acquire(timeout=LONG)
    # The embedder stands still from here on: each call below returns, or the test would never end.
    assert gated.ask("r", namespace, document(1))
    assert gated.poll("r") is None
    assert gated.offer(namespace, "d", document(1))
    assert gated.forget(namespace, "d")
    assert gated.stats().queued == 1
    assert not gated.wait_idle(0)
    assert threading.get_ident() not in embedder.threads
    assert len(embedder.threads) == 1


def test_a_full_queue_drops_and_counts(gated: EvidenceWorker, embedder: GatedEmbedder, namespace: Namespace) -> None:
    gated.offer(namespace, "busy", document(0))
    assert embedder.entered.acquire(timeout=LONG)
    taken = [gated.offer(namespace, f"d{i}", document(i)) for i in range(3)]
    taken += [gated.ask("r0", namespace, document(0)), gated.ask("r1", namespace, document(1))]
    taken += [gated.offer(namespace, "late", document(9))]
    assert taken == [True, True, True, True, False, False]
    assert gated.offer(namespace, "d0", document(5)), "a donor that waits already takes no second place"
    stats = gated.stats()
    assert (stats.dropped_offers, stats.dropped_asks, stats.queued) == (1, 1, 4)
    assert not gated.forget(namespace, "late"), "a dropped donor is not known"
    assert gated.forget(namespace, "d1")
    assert gated.stats().queued == 3, "forgetting makes room"


def test_asks_go_before_offers_and_do_not_starve_them(namespace: Namespace) -> None:
    served: list[str] = []

    class Recording(GatedEmbedder):
        def embed(self, document: Document) -> Vectors:
            served.append(document.text or "")
            return super().embed(document)

    embedder = Recording()
    worker = EvidenceWorker(lambda: embedder)
    tokens = document(0).token_ids
    worker.offer(namespace, "first", Document(tokens, text="first"))
    assert embedder.entered.acquire(timeout=LONG)
    for i in range(2):
        worker.offer(namespace, f"o{i}", Document(tokens, text=f"o{i}"))
    for i in range(6):
        worker.ask(f"a{i}", namespace, Document(tokens, text=f"a{i}"))
    embedder.gate.set()
    assert worker.wait_idle(LONG)
    assert served == ["first", "a0", "a1", "a2", "a3", "o0", "a4", "a5", "o1"]
    assert worker.close(LONG)


def test_a_donor_forgotten_while_it_is_embedded_never_appears(
    gated: EvidenceWorker, embedder: GatedEmbedder, namespace: Namespace
) -> None:
    gated.offer(namespace, "d", document(1))
    assert embedder.entered.acquire(timeout=LONG)
    assert gated.forget(namespace, "d")
    assert not gated.forget(namespace, "d")
    gated.ask("r", namespace, document(1))
    embedder.gate.set()
    assert gated.wait_idle(LONG)
    assert ids(gated, "r") == []
    assert gated.stats().donors == gated.stats().indexed == 0


def test_a_donor_forgotten_while_it_is_queued_is_never_embedded(
    gated: EvidenceWorker, embedder: GatedEmbedder, namespace: Namespace
) -> None:
    gated.offer(namespace, "busy", document(0))
    assert embedder.entered.acquire(timeout=LONG)
    gated.offer(namespace, "d", document(1))
    assert gated.forget(namespace, "d")
    embedder.gate.set()
    assert gated.wait_idle(LONG)
    assert gated.stats().indexed == 1


def test_forgetting_withdraws_a_donor_from_answers_already_given(worker: EvidenceWorker, namespace: Namespace) -> None:
    worker.offer(namespace, "d", document(1))
    worker.wait_idle(LONG)
    worker.ask("r", namespace, document(1))
    worker.wait_idle(LONG)
    assert ids(worker, "r") == ["d"]
    assert worker.forget(namespace, "d")
    assert ids(worker, "r") == []
    assert worker.wait_idle(LONG)
    assert worker.stats().donors == 0
    assert worker.stats().index_bytes == 0
    assert worker.offer(namespace, "d", document(1))
    assert worker.wait_idle(LONG)
    assert ids(worker, "r") == [], "the answer was about the donor that is gone, not about its successor"


def test_a_forgotten_id_offered_anew_counts_with_its_new_document(
    gated: EvidenceWorker, embedder: GatedEmbedder, namespace: Namespace
) -> None:
    gated.offer(namespace, "d", document(1))
    assert embedder.entered.acquire(timeout=LONG)
    gated.forget(namespace, "d")
    gated.offer(namespace, "d", document(2))
    embedder.gate.set()
    assert gated.wait_idle(LONG)
    gated.ask("old", namespace, document(1))
    gated.ask("new", namespace, document(2))
    assert gated.wait_idle(LONG)
    assert (ids(gated, "old"), ids(gated, "new")) == ([], ["d"])


def test_many_threads_race_and_the_forgotten_stay_gone(worker: EvidenceWorker, namespace: Namespace) -> None:
    def churn(name: str) -> None:
        for i in range(60):
            worker.offer(namespace, f"{name}{i}", document(i))
            worker.ask(f"{name}{i}", namespace, document(i))
            if i % 2:
                worker.forget(namespace, f"{name}{i}")

    threads = [threading.Thread(target=churn, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worker.wait_idle(LONG)
    assert worker.stats().failures == 0
    for i in range(1, 60, 2):
        worker.ask("check", namespace, document(i))
        assert worker.wait_idle(LONG)
        assert not {f"{name}{i}" for name in "abc"} & set(ids(worker, "check"))


def test_close_ends_the_thread_drops_the_queue_and_refuses_afterwards(
    gated: EvidenceWorker, embedder: GatedEmbedder, namespace: Namespace
) -> None:
    gated.offer(namespace, "busy", document(0))
    assert embedder.entered.acquire(timeout=LONG)
    gated.ask("r", namespace, document(0))
    assert not gated.close(0.01), "the embedder still stands still: close gives up waiting"
    assert not gated.offer(namespace, "d", document(1))
    assert not gated.ask("r2", namespace, document(1))
    embedder.gate.set()
    assert gated.close(LONG)
    assert gated.poll("r") is None
    assert not embedder.entered.acquire(blocking=False), "what waited was never embedded"
