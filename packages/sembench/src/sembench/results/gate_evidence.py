"""What the gates look at beyond the result's own figures: engine summaries and the noise floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sembench.results.confirmation import confirm
from sembench.results.figure import Found
from sembench.results.told import Told, sum_unnamed
from sembench.schema import Aggregate, EngineSummary, NoiseFloor, Paired, Result
from sembench.statistics import mean

_PROTOCOL = ("model", "max_output_tokens", "template", "concurrency")
"""Settings under which a noise floor holds. Batches change what an engine computes, so concurrency is one."""
_REASONS = 4
_ENGINE = ("name", "version", "model")


@dataclass
class BackendEvidence:
    """What backends tell of a run, by request where they can, and where that comes from."""

    aggregate: Aggregate
    paired: Paired | None
    source: str
    events: int | None = None
    tokens: int | None = None
    errors: int | None = None
    error_samples: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    remedy: str = ""
    """What to do where nothing is told."""

    @classmethod
    def of(cls, result: Result, summaries: Sequence[EngineSummary], missing: Sequence[str] = ()) -> BackendEvidence:
        found = confirm(result, summaries)
        known = found.aggregate
        evidence = cls(known, found.paired, found.source, known.materialization_events, known.materialized_tokens)
        evidence.contradictions, evidence.notes = found.contradictions, found.notes
        evidence.remedy = _remedy(summaries, missing)
        evidence._take_errors(found.told)
        if evidence.tokens is None and not found.contradictions:
            evidence._take_unnamed(found.told)
        return evidence

    def _take_errors(self, told: Sequence[Told]) -> None:
        self.error_samples = [sample for each in told for sample in each.summary.error_samples]
        count = sum(each.summary.errors for each in told)
        # One log that is empty or damaged may be the one that held them.
        partly = any(each.is_silent or each.summary.extra.get("unread_files") for each in told)
        self.errors = count if told and (count or not partly) else None

    def _take_unnamed(self, told: Sequence[Told]) -> None:
        """Nothing is told by request: then what landed for nobody by name, where it can only be this run's."""
        doubts = [why for each in told if each.unnamed and each.unnamed[1] and (why := each.why_not_ours())]
        if doubts:
            self.remedy = f": {doubts[0]}"
            return
        unnamed = sum_unnamed(told)
        # Where requests of this run are named and have no outcome yet, it is not known that nothing landed.
        if unnamed is not None and (unnamed[1] or not any(each.items for each in told)):
            self.events, self.tokens = unnamed

    def of_it(self, found: Found) -> Found:
        """The figure with its source, and with why requests were declined."""
        reasons = sorted(self.aggregate.decline_reasons.items(), key=lambda entry: -entry[1])
        listed = ", ".join(f"{name} {count}" for name, count in reasons[:_REASONS])
        return replace(found, source=self.source, remark=f"; declined: {listed}" if listed else "")


def _remedy(summaries: Sequence[EngineSummary], missing: Sequence[str]) -> str:
    if missing:
        return f": no such file: --engine-summary {' '.join(missing)} (summarize-engine-events writes it)"
    if not summaries:
        return ": give --engine-summary, or run with --connector-audit"
    if all(each.materialization_events is None for each in summaries):
        return ": no event of reuse is in the log; was reuse on, and did the server write its events?"
    return ": the log names no request of this run" if not any(each.requests for each in summaries) else ""


def warm_vs_cold_rouge(result: Result) -> tuple[float | None, int]:
    """Mean ROUGE-L of warm answers against the cold ones of the same items, negative controls apart."""
    compared = [
        record.quality.cold_rouge_l
        for record in result.requests
        if record.arm == "warm" and record.status == "ok" and not record.negative_control
    ]
    known = [value for value in compared if value is not None]
    return mean(known), len(known)


def protocol_difference(result: Result, floor: NoiseFloor) -> str | None:
    """The first thing that makes the two incomparable. What either does not state is not held against it."""
    pairs = [("manifest_sha256", result.run.manifest_sha256, floor.run.manifest_sha256)]
    pairs += [(f"engine {key}", result.run.engine.get(key), floor.run.engine.get(key)) for key in _ENGINE]
    pairs += [(key, result.config.get(key), floor.config.get(key)) for key in _PROTOCOL]
    for name, here, there in pairs:
        if here is not None and there is not None and here != there:
            return f"{name} is {here!r} in the result and {there!r} in the noise floor"
    return None
