"""The evidence worker's limits: what fails, fills up, expires or is closed stays bounded and counted."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

from semblend_core import Namespace
from semblend_dynamo.evidence import Document, EvidenceError, EvidenceWorker, JaccardEmbedder, Vectors

LONG = 30.0
"""Seconds after which a wait is a failure. Nothing here asserts how long anything took."""


def document(seed: int, length: int = 400) -> Document:
    return Document(np.random.default_rng(seed).integers(0, 50_000, length, dtype=np.int32))


def ids(worker: EvidenceWorker, request_id: str) -> list[str]:
    evidence = worker.poll(request_id)
    assert evidence is not None, f"no answer: {worker.stats()}"
    return [each.donor_id for each in evidence]


def test_a_failing_document_costs_only_itself(namespace: Namespace, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(JaccardEmbedder):
        def embed(self, document: Document) -> Vectors:
            document.read_text()  # as a model that reads text does
            return super().embed(document)

    def fail(tokens: object) -> str:
        raise KeyError("no such token")

    tokens = document(1).token_ids
    worker = EvidenceWorker(Broken)
    with caplog.at_level(logging.WARNING):
        for i in range(3):
            worker.offer(namespace, f"bad{i}", Document(tokens, detokenize=fail))
            worker.ask(f"bad{i}", namespace, Document(tokens, detokenize=fail))
        worker.offer(namespace, "good", Document(tokens, text="fine"))
        assert worker.wait_idle(LONG)
        worker.ask("r", namespace, Document(tokens, text="fine"))
        assert worker.wait_idle(LONG)
    assert ids(worker, "r") == ["good"]
    assert worker.poll("bad0") is None
    assert (worker.stats().failures, worker.stats().disabled) == (6, None)
    assert len(caplog.records) == 1
    assert not worker.forget(namespace, "bad0"), "a donor that could not be embedded is not known"
    assert worker.close(LONG)


def test_a_failed_second_offer_leaves_nothing_of_the_first(namespace: Namespace) -> None:
    class NeedsText(JaccardEmbedder):
        def embed(self, document: Document) -> Vectors:
            document.read_text()
            return super().embed(document)

    worker = EvidenceWorker(NeedsText)
    worker.offer(namespace, "d", Document(document(1).token_ids, text="fine"))
    assert worker.wait_idle(LONG)
    worker.offer(namespace, "d", document(2))
    assert worker.wait_idle(LONG)
    assert (worker.stats().donors, worker.stats().failures) == (0, 1)
    assert worker.close(LONG)


def test_a_model_that_does_not_load_disables_evidence_with_one_reason(
    namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    loading_threads: list[int] = []

    def build() -> JaccardEmbedder:
        loading_threads.append(threading.get_ident())
        raise EvidenceError("SEMBLEND_EMBED_MODEL=/nowhere is not a folder")

    worker = EvidenceWorker(build)
    assert loading_threads == [], "nothing loads before the first document"
    with caplog.at_level(logging.INFO):
        worker.offer(namespace, "d", document(1))
        assert worker.wait_idle(LONG)
        assert not worker.offer(namespace, "e", document(2))
        assert not worker.ask("r", namespace, document(1))
    assert worker.poll("r") is None
    assert not worker.forget(namespace, "d")
    stats = worker.stats()
    assert stats.disabled == "EvidenceError: SEMBLEND_EMBED_MODEL=/nowhere is not a folder"
    assert (stats.dropped_offers, stats.dropped_asks, stats.failures) == (1, 1, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert loading_threads != [threading.get_ident()]
    assert len(loading_threads) == 1
    assert worker.close(LONG)


def test_answers_are_bounded_and_expire(namespace: Namespace) -> None:
    now = [0.0]
    worker = EvidenceWorker(JaccardEmbedder, answer_limit=3, answer_lifetime_s=10, clock=lambda: now[0])
    for i in range(5):
        worker.ask(f"r{i}", namespace, document(i))
    assert worker.wait_idle(LONG)
    assert [worker.poll(f"r{i}") for i in range(5)] == [None, None, (), (), ()]
    assert worker.stats().answers == 3
    now[0] = 10.0
    assert worker.poll("r4") is None
    assert (worker.stats().answers, worker.stats().expired_answers) == (0, 5)
    assert worker.close(LONG)


def test_similarity_below_the_limit_is_not_evidence(namespace: Namespace) -> None:
    half = Document(np.concatenate([document(1, 200).token_ids, document(2, 200).token_ids]))
    for least, expected in ((0.0, ["d"]), (0.9, [])):
        worker = EvidenceWorker(JaccardEmbedder, min_similarity=least)
        worker.offer(namespace, "d", half)
        worker.wait_idle(LONG)
        worker.ask("r", namespace, document(1, 200))
        worker.wait_idle(LONG)
        assert ids(worker, "r") == expected
        assert worker.close(LONG)


def test_the_byte_budget_stops_further_donors(namespace: Namespace) -> None:
    worker = EvidenceWorker(JaccardEmbedder, max_index_bytes=3 * 256 * 4)
    for i in range(8):
        worker.offer(namespace, f"d{i}", document(i))
    assert worker.wait_idle(LONG)
    stats = worker.stats()
    assert stats.indexed + stats.over_budget == 8
    assert stats.over_budget >= 4
    assert worker.forget(namespace, "d0")
    assert not worker.forget(namespace, "d7")
    assert worker.close(LONG)


def test_an_empty_document_is_neither_donor_nor_failure(namespace: Namespace) -> None:
    worker = EvidenceWorker(JaccardEmbedder)
    nothing = Document(np.empty(0, dtype=np.int32))
    worker.offer(namespace, "d", nothing)
    worker.ask("r", namespace, nothing)
    assert worker.wait_idle(LONG)
    assert worker.poll("r") == ()
    assert (worker.stats().donors, worker.stats().failures) == (0, 0)
    assert worker.close(LONG)


def test_a_worker_never_used_has_no_thread() -> None:
    before = threading.active_count()
    worker = EvidenceWorker(JaccardEmbedder)
    assert threading.active_count() == before
    assert worker.close()
    assert worker.close()


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [({"queue_size": 0}, "SEMBLEND_EMBED_QUEUE"), ({"min_similarity": 1.5}, "SEMBLEND_MIN_SIMILARITY")],
)
def test_settings_out_of_range_are_named(wrong: dict[str, float], setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        EvidenceWorker(JaccardEmbedder, **wrong)  # type: ignore[arg-type]
