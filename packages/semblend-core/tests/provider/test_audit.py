"""One request's life as the audit stream tells it."""

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
    assert (life[0]["reason"], life[0]["stage"]) == ("donor_too_short", "offer")
    assert (life[3]["request_id"], life[3]["reused_tokens"], life[3]["materialize"]) == ("r", 299, True)
    assert (life[4]["tokens"], life[4]["bytes"]) == (299, 4096)
    assert (life[5]["reason"], life[5]["spans"]) == ("no_spans", 0)
    assert (life[6]["request_id"], life[6]["stage"]) == ("miss", "lookup")
    assert (life[9]["reason"], life[9]["stage"]) == ("load_failed", "load")
    assert [life[i]["cause"] for i in (11, 13)] == ["budget", "forgotten"]
    assert [life[i]["donor_id"] for i in (11, 13)] == [life[i]["donor_id"] for i in (1, 12)]


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
