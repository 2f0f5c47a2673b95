"""What is counted and recorded for a provider that has no counters of its own."""

from __future__ import annotations

from pathlib import Path

from semblend_core import DeclineReason, Outcome, OutcomeKind, Settings, open_audit, read_audit
from semblend_core.serving import AliasLedger


def test_an_alias_is_on_record_and_in_no_count_of_reuse(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    ledger = AliasLedger(open_audit(Settings(audit_path=str(path)), "sglang"))
    ledger.report_outcome(Outcome("a", OutcomeKind.ALIAS, alias_tokens=96))
    ledger.report_outcome(Outcome("b", OutcomeKind.DECLINED, reason=DeclineReason.NO_SPANS))
    ledger.report_outcome(Outcome("c", OutcomeKind.EXACT_PREFIX))
    stats = ledger.stats()
    assert (stats.alias_tokens, stats.confirmed_tokens) == (96, 0)
    assert stats.outcomes == dict.fromkeys((OutcomeKind.ALIAS, OutcomeKind.DECLINED, OutcomeKind.EXACT_PREFIX), 1)
    assert stats.declines == {DeclineReason.NO_SPANS: 1}
    ledger.close()
    told = [(record["event"], record["request_id"]) for record in read_audit(path).records]
    assert told == [("alias", "a"), ("declined", "b")]
