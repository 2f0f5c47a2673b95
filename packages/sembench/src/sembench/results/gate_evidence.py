"""What the gates look at beyond the result's own figures: engine summaries and the noise floor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sembench.schema import EngineSummary, NoiseFloor, Result
from sembench.statistics import mean

_PROTOCOL = ("model", "max_output_tokens", "template", "concurrency")
"""Settings under which a noise floor holds. Batches change what an engine computes, so concurrency is one."""
_ENGINE = ("name", "version", "model")


@dataclass
class BackendEvidence:
    """Materialization as the backend's events tell it: from the summaries where there are any, else from the result."""

    source: str
    events: int | None = None
    tokens: int | None = None
    errors: int | None = None
    error_samples: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, result: Result, summaries: Sequence[EngineSummary]) -> BackendEvidence:
        if not summaries:
            told = result.aggregate
            return cls("result", told.materialization_events, told.materialized_tokens)
        # An empty text log is of no server that ran; an empty event stream tells its counts all the same.
        silent = all(summary.lines == 0 and summary.materialization_events is None for summary in summaries)
        evidence = cls(
            "engine summary" if len(summaries) == 1 else f"{len(summaries)} engine summaries",
            _sum(summary.materialization_events for summary in summaries),
            _sum(summary.materialized_tokens for summary in summaries),
            None if silent else sum(summary.errors for summary in summaries),
            [sample for summary in summaries for sample in summary.error_samples],
        )
        evidence.notes = [*_damages(summaries), *_contradictions(result, summaries, evidence.tokens)]
        # A log may hold more than this run: nothing counts for it that its own requests were not confirmed.
        evidence.events = _smaller(evidence.events, result.aggregate.materialization_events)
        evidence.tokens = _smaller(evidence.tokens, result.aggregate.materialized_tokens)
        return evidence


def _smaller(told: int | None, stated: int | None) -> int | None:
    return told if told is None or stated is None else min(told, stated)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _damages(summaries: Sequence[EngineSummary]) -> list[str]:
    return [
        f"{summary.engine} summary of {', '.join(summary.inputs)}: {summary.unparsed_lines} event lines were not "
        "readable, so its counts are lower bounds"
        for summary in summaries
        if summary.unparsed_lines
    ]


def _contradictions(result: Result, summaries: Sequence[EngineSummary], tokens: int | None) -> list[str]:
    """Where summary and result cannot both be right. More tokens in a log than in a result is no contradiction."""
    notes = []
    stated = result.aggregate.materialized_tokens
    if stated is not None and tokens is not None and tokens < stated:
        notes.append(f"contradiction: the result states {stated} materialized tokens, the summaries only {tokens}")
    if stated is not None and tokens is not None and tokens > stated:
        notes.append(f"the summaries tell of {tokens - stated} materialized tokens beyond the result's {stated}")
    differing = [
        (record_id, here, there)
        for record_id, here, there in _same_requests(result, summaries)
        if here is not None and there is not None and here != there
    ]
    if differing:
        name, here, there = differing[0]
        notes.append(
            f"contradiction: {len(differing)} requests have other confirmed tokens in the summaries than in the "
            f"result, such as {name}: result {here}, summary {there}"
        )
    return notes


def _same_requests(result: Result, summaries: Sequence[EngineSummary]) -> Iterable[tuple[str, int | None, int | None]]:
    """Requests that both name. Engines put marks of their own around the id that they were given."""
    records = {record.request_id: record for record in result.requests if record.request_id and record.arm == "warm"}
    for summary in summaries:
        for name, request in summary.requests.items():
            own = name if name in records else next((each for each in records if each in name), None)
            if own is not None:
                yield own, records[own].confirmed_tokens, request.confirmed_tokens


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
