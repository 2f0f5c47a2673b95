"""One request's life as the audit stream tells it, and evidence from prefetch to plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semblend_core import (
    DeclineReason,
    DonorOffer,
    LookupRequest,
    Namespace,
    Outcome,
    OutcomeKind,
    SemBlend,
    TokenIds,
    read_audit,
)

Text = Callable[[int, int], TokenIds]
Offer = Callable[..., DonorOffer]
Ask = Callable[..., LookupRequest]


def records(path: Path) -> list[dict[str, Any]]:
    reading = read_audit(path)
    assert not reading.torn
    return list(reading.records)


def test_a_whole_life_is_on_record(
    make_provider: Callable[..., SemBlend],
    namespace: Namespace,
    tmp_path: Path,
    text: Text,
    offer: Offer,
    request_for: Ask,
) -> None:
    path = tmp_path / "audit.jsonl"
    provider = make_provider(audit_path=str(path), max_donors=2)
    provider.offer_donor(offer("short", text(0, 10)))
    provider.offer_donor(offer("d", text(1, 300)))
    provider.lookup(request_for("r", np.concatenate([text(2, 20), text(1, 300)])))
    provider.report_outcome(Outcome("r", OutcomeKind.MATERIALIZED, confirmed_tokens=299, confirmed_bytes=4096))
    provider.lookup(request_for("miss", text(9, 300)))
    provider.report_outcome(Outcome("miss", OutcomeKind.DECLINED, reason=DeclineReason.NO_SPANS))
    provider.lookup(request_for("lost", np.concatenate([text(2, 20), text(1, 300)])))
    provider.report_outcome(Outcome("lost", OutcomeKind.DECLINED, reason=DeclineReason.LOAD_FAILED))
    provider.offer_donor(offer("e", text(3, 300)))
    provider.offer_donor(offer("f", text(4, 300)))
    provider.forget_donor(namespace, "f")
    provider.close()
    life = records(path)
    assert [record["event"] for record in life] == [
        "declined",
        "donor_registered",
        "lookup",
        "plan",
        "materialized",
        "lookup",
        "declined",
        "lookup",
        "plan",
        "declined",
        "donor_registered",
        "evicted",
        "donor_registered",
        "evicted",
    ]
    assert all(record["engine"] == "test" for record in life)
    assert {record["namespace"] for record in life if record["event"] != "declined"} == {namespace.digest}
    assert (life[0]["reason"], life[0]["stage"], life[0]["donor_id"]) == ("donor_too_short", "offer", "short")
    assert (life[3]["request_id"], life[3]["reused_tokens"], life[3]["materialize"]) == ("r", 299, True)
    assert (life[4]["tokens"], life[4]["bytes"]) == (299, 4096)
    assert (life[5]["reason"], life[5]["spans"]) == ("no_spans", 0)
    assert (life[6]["request_id"], life[6]["stage"]) == ("miss", "lookup")
    assert (life[9]["reason"], life[9]["stage"]) == ("load_failed", "load")
    assert [(life[i]["donor_id"], life[i]["cause"]) for i in (11, 13)] == [
        ("d", "budget"),
        ("f", "forgotten"),
    ]


def test_a_fault_is_on_record_without_its_message(
    make_provider: Callable[..., SemBlend],
    tmp_path: Path,
    text: Text,
    offer: Offer,
    request_for: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "audit.jsonl"
    provider = make_provider(audit_path=str(path))
    provider.offer_donor(offer("d", text(1, 300)))

    def fail(*arguments: Any) -> Any:
        raise RuntimeError("tenant-secret")

    monkeypatch.setattr(provider.registry, "find", fail)
    provider.lookup(request_for("r", text(1, 300)))
    provider.close()
    (fault,) = [record for record in records(path) if record["event"] == "error"]
    assert (fault["request_id"], fault["where"], fault["error"]) == ("r", "lookup", "RuntimeError")
    assert "tenant-secret" not in path.read_text()


def every(tokens: TokenIds, step: int) -> TokenIds:
    changed = tokens.copy()
    changed[step::step] = 60_000
    return changed


def test_evidence_asked_for_ahead_names_the_donor_and_leads_to_its_islands(
    make_provider: Callable[..., SemBlend], namespace: Namespace, text: Text, offer: Offer, request_for: Ask
) -> None:
    """Edits every 30 tokens leave no long run; evidence names the donor, which is searched for islands."""
    provider = make_provider(embedder="jaccard", fuzzy_chunks=True, min_similarity=0.5)
    provider.offer_donor(offer("like", text(1, 1000)))
    provider.offer_donor(offer("unlike", text(2, 1000)))
    prompt = every(text(1, 1000), 30)
    assert provider._evidence is not None
    assert provider._evidence.wait_idle(30)
    assert provider.prefetch_evidence("r", namespace, prompt)
    assert provider._evidence.wait_idle(30)
    result = provider.lookup(request_for("r", prompt))
    assert [each.donor_id for each in result.evidence] == ["like"]
    assert result.evidence[0].method == "jaccard"
    assert 0.5 <= result.evidence[0].similarity <= 1
    assert result.plan is not None
    assert result.plan.donor_ids == ("like",)
    assert result.plan.reused_tokens >= 0.9 * 1000


def test_evidence_alone_is_never_a_licence_to_load(
    make_provider: Callable[..., SemBlend], namespace: Namespace, text: Text, offer: Offer, request_for: Ask
) -> None:
    """The same words in another order: as similar as can be, and not one run to reuse."""
    provider = make_provider(embedder="jaccard", fuzzy_chunks=True, min_similarity=0.3)
    triples = text(1, 999).reshape(-1, 3)
    provider.offer_donor(offer("d", triples.reshape(-1)))
    prompt = np.concatenate(list(triples[::-1]))
    assert provider._evidence is not None
    assert provider._evidence.wait_idle(30)
    provider.prefetch_evidence("r", namespace, prompt)
    assert provider._evidence.wait_idle(30)
    result = provider.lookup(request_for("r", prompt))
    assert result.plan is None
    assert result.reason is DeclineReason.NO_SPANS


def test_a_lookup_does_not_wait_for_evidence(
    make_provider: Callable[..., SemBlend], text: Text, offer: Offer, request_for: Ask
) -> None:
    provider = make_provider(embedder="jaccard")
    provider.offer_donor(offer("d", text(1, 300)))
    result = provider.lookup(request_for("never asked", np.concatenate([text(2, 20), text(1, 300)])))
    assert result.evidence == ()
    assert result.plan is not None


def test_a_forgotten_donor_is_no_evidence(
    make_provider: Callable[..., SemBlend], namespace: Namespace, text: Text, offer: Offer, request_for: Ask
) -> None:
    provider = make_provider(embedder="jaccard")
    provider.offer_donor(offer("d", text(1, 300)))
    provider.offer_donor(offer("e", text(2, 300)))
    assert provider._evidence is not None
    provider.prefetch_evidence("r", namespace, text(1, 300))
    assert provider._evidence.wait_idle(30)
    provider.forget_donor(namespace, "d")
    assert provider.lookup(request_for("r", text(1, 300))).evidence == ()


def test_without_an_embedder_there_is_nothing_to_prefetch(provider: SemBlend, namespace: Namespace, text: Text) -> None:
    assert provider.prefetch_evidence("r", namespace, text(1, 300)) is False


def test_invalid_tokens_are_no_evidence_and_no_error(
    make_provider: Callable[..., SemBlend], namespace: Namespace
) -> None:
    provider = make_provider(embedder="jaccard")
    assert provider.prefetch_evidence("r", namespace, np.array([-1, -2])) is False


@pytest.mark.parametrize(
    "settings", [{"embedder": "minilm"}, {"embedder": "none"}, {"embedder": "jaccard", "enabled": False}]
)
def test_no_worker_is_built_where_none_could_work(
    make_provider: Callable[..., SemBlend], settings: dict[str, Any]
) -> None:
    assert make_provider(**settings)._evidence is None
