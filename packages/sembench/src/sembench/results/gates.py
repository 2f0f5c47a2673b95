"""Gates: what a result must show, each judged on one figure. A figure that is missing fails the gate that needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from sembench.results.figure import Found
from sembench.results.gate_evidence import BackendEvidence, protocol_difference, warm_vs_cold_rouge
from sembench.schema import EngineSummary, Interval, NoiseFloor, Paired, Rate, Result


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The gates that were asked for; None and False: not asked for."""

    min_quality_pass_rate: float | None = None
    min_semantic_placement_rate: float | None = None
    min_backend_confirmed_block_rate: float | None = None
    min_materialization_events: int | None = None
    min_materialized_tokens: int | None = None
    min_blended_ttft_speedup: float | None = None
    max_negative_control_confirmed_rate: float | None = None
    max_negative_control_speedup_deviation: float | None = None
    max_warm_vs_cold_rouge_drop: float | None = None
    min_judge_faithfulness: float | None = None
    require_materialized_reuse: bool = False
    require_no_engine_errors: bool = False

    @property
    def names(self) -> list[str]:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return [name for name, value in values if value is not None and value is not False]


@dataclass(frozen=True)
class Verdict:
    gate: str
    wanted: str
    found: str
    passed: bool | None
    """None: not judged, because the figure is missing and that was allowed."""
    source: str
    """What was judged: the result, engine summaries, or both."""
    reason: str | None = None


@dataclass(frozen=True)
class GateReport:
    verdicts: list[Verdict]
    notes: list[str]
    """What a reader of the verdicts should know."""

    @property
    def failures(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.passed is False]


def judge_gates(
    wanted: Wanted,
    result: Result,
    summaries: Sequence[EngineSummary] = (),
    noise_floor: NoiseFloor | None = None,
    *,
    allow_missing: bool = False,
    missing_summaries: Sequence[str] = (),
) -> GateReport:
    """One verdict for each gate that is named, in the order of ``Wanted``; before them, what is wrong with sources."""
    backend = BackendEvidence.of(result, summaries, missing_summaries)
    told = backend.aggregate
    figures: dict[str, Callable[[], Found]] = {
        "min_quality_pass_rate": lambda: _rate(result.aggregate.quality_pass_rate, "no answer was scored"),
        "min_semantic_placement_rate": lambda: _rate(
            told.semantic_placement_rate_by_request, "no route metadata tells where requests were sent, and why"
        ),
        "min_backend_confirmed_block_rate": lambda: backend.of_it(
            _rate(told.backend_confirmed_block_rate, _why_no_blocks(result, backend, "a request"))
        ),
        "min_materialization_events": lambda: _count(backend.events, backend),
        "min_materialized_tokens": lambda: _count(backend.tokens, backend),
        "min_blended_ttft_speedup": lambda: _interval(
            backend.paired.blended_ttft_speedup_median if backend.paired else None
        ),
        "max_negative_control_confirmed_rate": lambda: backend.of_it(
            _rate(told.negative_control_backend_confirmed_rate, _why_no_controls(result, backend))
        ),
        "max_negative_control_speedup_deviation": lambda: _deviation(backend.paired),
        "max_warm_vs_cold_rouge_drop": lambda: _rouge_drop(result, noise_floor),
        "min_judge_faithfulness": lambda: _judged(result),
        "require_materialized_reuse": lambda: _reuse(backend),
        "require_no_engine_errors": lambda: _errors(backend),
    }
    verdicts = [
        Verdict("sources agree", "one story", "CONTRADICTION", False, backend.source, why)
        for why in backend.contradictions
    ]
    if missing_summaries:
        why = f"no such file: {', '.join(missing_summaries)}; summarize-engine-events writes it"
        passed = None if allow_missing else False
        verdicts.append(Verdict("--engine-summary", "all are there", "missing", passed, backend.source, why))
    verdicts += [_verdict(name, getattr(wanted, name), figures[name](), allow_missing) for name in wanted.names]
    return GateReport(verdicts, backend.notes)


def _verdict(name: str, bound: float | bool, found: Found, allow_missing: bool) -> Verdict:
    gate, wanted = f"--{name.replace('_', '-')}", _bound(name, bound)
    limit = 1.0 if name == "require_materialized_reuse" else 0.0 if name == "require_no_engine_errors" else float(bound)
    at_most = name.startswith("max_") or name == "require_no_engine_errors"
    if found.value is None:
        if at_most and found.at_least is not None and found.at_least > limit:
            above = f"what is known is already above it: {found.shown}"
            return Verdict(gate, wanted, found.shown, False, found.source, above)
        missing = found.missing or "not measured"
        return Verdict(gate, wanted, "missing", None if allow_missing else False, found.source, missing)
    passed = found.value <= limit if at_most else found.value >= limit
    why = None if passed else f"wanted {wanted}, found {found.shown}{'' if at_most else found.remark}"
    return Verdict(gate, wanted, found.shown, passed, found.source, why)


def _bound(name: str, bound: float | bool) -> str:
    if name == "require_materialized_reuse":
        return "tokens > 0, events >= 1"
    if name == "require_no_engine_errors":
        return "0 errors"
    return f"{'<=' if name.startswith('max_') else '>='} {bound:g}"


def _rate(rate: Rate | None, missing: str) -> Found:
    if rate is None:
        return Found(None, "missing", missing)
    parts = f"{_plain(rate.numerator)} of {_plain(rate.denominator)}"
    if rate.value is None:
        known = rate.numerator / rate.denominator if rate.numerator is not None and rate.denominator else None
        why = "nothing to divide by" if not rate.denominator else "not every request of it was measured"
        return Found(None, f"at least {parts}", f"{why} ({parts})", at_least=known)
    return Found(rate.value, f"{rate.value:.4f} ({parts})")


def _why_no_blocks(result: Result, backend: BackendEvidence, of_what: str) -> str:
    told = backend.aggregate.backend_confirmed_rate_by_request is not None
    if told and all(record.total_blocks is None for record in result.requests):
        return "no answer says how long its prompt is, so its blocks are not known: the server must report usage"
    return f"no backend event covers {of_what}{backend.remedy}"


def _why_no_controls(result: Result, backend: BackendEvidence) -> str:
    if not any(record.negative_control for record in result.requests):
        return "no request is a negative control: build the manifest with --transforms ... negative_control"
    return _why_no_blocks(result, backend, "the negative controls")


def _count(value: int | None, backend: BackendEvidence) -> Found:
    if value is None:
        return backend.of_it(Found(None, "missing", f"no backend event tells of it{backend.remedy}"))
    return backend.of_it(Found(float(value), str(value)))


def _interval(interval: Interval | None) -> Found:
    if interval is None or interval.value is None:
        return Found(
            None, "missing", "the result has no clean pair: run with --paired, or pair two runs (merge-results)"
        )
    bounds = "" if interval.low is None else f", 95% {interval.low:.3f} to {interval.high:.3f}"
    return Found(interval.value, f"{interval.value:.3f} (n={interval.n}{bounds})")


def _deviation(paired: Paired | None) -> Found:
    found = _interval(paired.negative_control_ttft_speedup_median if paired else None)
    if found.value is None:
        return Found(None, "missing", "the result has no clean pair of a negative control")
    deviation = abs(found.value - 1)
    return Found(deviation, f"{deviation:.3f} (speedup {found.shown})")


def _rouge_drop(result: Result, floor: NoiseFloor | None) -> Found:
    if floor is None:
        return Found(None, "missing", "needs --noise-floor-calibration: see calibrate-noise-floor")
    if floor.rouge_l.mean is None:
        return Found(None, "missing", "the noise floor holds no pair of cold answers")
    difference = protocol_difference(result, floor)
    if difference:
        return Found(None, "missing", f"the noise floor is of another protocol: {difference}")
    warm, pairs = warm_vs_cold_rouge(result)
    if warm is None:
        return Found(None, "missing", "no warm answer was compared with its cold one")
    drop = max(0.0, floor.rouge_l.mean - warm)
    return Found(
        drop,
        f"{drop:.4f} (warm-cold {warm:.4f}, n={pairs}; cold-cold {floor.rouge_l.mean:.4f}, n={floor.rouge_l.n})",
    )


def _judged(result: Result) -> Found:
    told = (result.aggregate.judge or {}).get("faithfulness_warm")
    if not isinstance(told, dict) or told.get("mean") is None:
        return Found(None, "missing", "no judge was asked: see sembench judge")
    scored, answers = int(told.get("n") or 0), (result.aggregate.judge or {}).get("answers_warm")
    mean, shown = float(told["mean"]), f"{told['mean']:.3f} (n={scored}, 1 to 5)"
    if isinstance(answers, int) and answers > scored:
        # An answer without a score must not help: as if it had the lowest.
        mean = (mean * scored + (answers - scored)) / answers
        shown = f"at least {mean:.3f} ({scored} of {answers} answers have a score, of {told['mean']:.3f} on average)"
    return Found(mean, shown)


def _reuse(backend: BackendEvidence) -> Found:
    if backend.tokens is None or backend.events is None:
        return backend.of_it(Found(None, "missing", f"no backend event tells of reuse{backend.remedy}"))
    shown = f"{backend.tokens} tokens, {backend.events} events"
    return backend.of_it(Found(float(backend.tokens > 0 and backend.events >= 1), shown))


def _errors(backend: BackendEvidence) -> Found:
    if backend.errors is None:
        missing = "only a log can tell: give --engine-summary of one that is not empty"
        return backend.of_it(Found(None, "missing", missing))
    sample = f": {backend.error_samples[0]}" if backend.error_samples else ""
    return backend.of_it(Found(float(backend.errors), f"{backend.errors} errors{sample}"))


def _plain(value: float | None) -> str:
    return "not known" if value is None else f"{value:g}"
