"""The figures a reader looks for first, each with what it was made of."""

from __future__ import annotations

from dataclasses import dataclass

from sembench.report.figures import (
    NOT_MEASURED,
    count,
    counts_of,
    difference,
    interval_words,
    known,
    milliseconds,
    number,
    pairs_words,
    percent,
    times,
)
from sembench.report.markup import Child, Html, el, join, section
from sembench.schema import Aggregate, Interval, Paired, Rate, Result


@dataclass(frozen=True)
class FigureRow:
    name: str
    value: Html | str
    made_of: Child = None
    strong: bool = False


def render_headline(result: Result, prefix: str) -> Html:
    return section(
        f"{prefix}summary", "Summary", el("p", summarize_result(result), class_="lead"), _table(group_rows(result))
    )


def group_rows(result: Result) -> list[tuple[str, list[FigureRow]]]:
    """The headline's rows by the question they answer; the comparison shows the same ones side by side."""
    aggregate, paired = result.aggregate, result.paired or Paired(clean_pairs=0)
    if result.run.kind == "offline":
        return [("What could be reused", _offline(aggregate)), ("Negative controls", control_rows(aggregate, paired))]
    return [
        ("Speed", _speed(paired)),
        ("Reuse, as the backend confirmed it", _reuse(result, paired)),
        ("Quality against the cold answers", _quality(aggregate, paired)),
        ("Negative controls", control_rows(aggregate, paired)),
    ]


def summarize_result(result: Result) -> str:
    """The result in sentences; only what was measured is told."""
    aggregate, paired = result.aggregate, result.paired
    told = [
        _speed_sentence(paired),
        _reuse_sentence(result),
        _quality_sentence(aggregate),
        _control_sentence(aggregate),
    ]
    if result.run.kind == "offline":
        told = [_offline_sentence(aggregate), _offline_control_sentence(aggregate)]
    if aggregate.requests_failed:
        failed, all_of_them = aggregate.requests_failed, aggregate.requests_failed + aggregate.requests_ok
        told.append(f"{failed:,} of {all_of_them:,} requests failed.")
    return " ".join(sentence for sentence in told if sentence) or "None of the headline figures was measured."


def count_reused_tokens(result: Result) -> Rate | None:
    """Confirmed tokens of the prompt tokens, over the warm requests for which the backend told both."""
    told = [
        (record.confirmed_tokens, record.prompt_tokens)
        for record in result.requests
        if record.arm == "warm" and record.confirmed_tokens is not None and record.prompt_tokens
    ]
    return Rate.of(sum(a for a, _ in told), sum(b for _, b in told)) if told else None


def find_hit_rate(result: Result) -> Rate | None:
    """Of the clean pairs where there are pairs, else of all requests."""
    if result.paired is not None and result.paired.hit_rate is not None:
        return result.paired.hit_rate
    return result.aggregate.backend_confirmed_rate_by_request


def control_rows(aggregate: Aggregate, paired: Paired) -> list[FigureRow]:
    return [
        _rate("Controls with any reuse", aggregate.negative_control_backend_confirmed_rate_by_request, "requests"),
        _rate("Their blocks confirmed by the backend", aggregate.negative_control_backend_confirmed_rate, "blocks"),
        _rate("Their blocks found eligible", aggregate.negative_control_semantic_eligible_rate, "blocks"),
        _interval("TTFT ratio, should be about 1", paired.negative_control_ttft_speedup_median),
    ]


def _speed(paired: Paired) -> list[FigureRow]:
    return [
        _interval("Blended TTFT speed-up, median", paired.blended_ttft_speedup_median, strong=True),
        _hits_alone(paired),
        FigureRow("TTFT cold, median", milliseconds(paired.cold_ttft_ms_median), _clean(paired)),
        FigureRow("TTFT of an exact repeat, median", milliseconds(paired.exact_ttft_ms_median)),
        FigureRow("TTFT with reuse, median", milliseconds(paired.warm_ttft_ms_median), _clean(paired)),
        FigureRow(
            "Cost of a miss, median", milliseconds(_value(paired.miss_tax_ms)), _bounds(paired.miss_tax_ms, " ms")
        ),
    ]


def _hits_alone(paired: Paired) -> FigureRow:
    """Never without the hit rate: the fewer hits, the less it says about the whole."""
    row = _interval("Speed-up of hits alone, median", paired.hit_ttft_speedup_median)
    counts = counts_of(paired.hit_rate)
    return FigureRow(row.name, row.value, _also(str(row.made_of or ""), f"hits {counts}" if counts else None))


def _reuse(result: Result, paired: Paired) -> list[FigureRow]:
    aggregate = result.aggregate
    whose = "clean pairs" if paired.hit_rate is not None else "requests"
    return [
        _rate("Hit rate", find_hit_rate(result), whose, strong=True),
        _tokens(result),
        _rate("Reused of what was advertised", aggregate.materialized_reuse_rate, "tokens"),
        _rate("Blocks confirmed by the backend", aggregate.backend_confirmed_block_rate, "blocks"),
        _rate("Blocks that an exact cache would hit", aggregate.exact_block_hit_rate, "blocks"),
        FigureRow("Confirmed beyond exact", difference(aggregate.backend_confirmed_lift)),
        _rate("Contamination seen by later probes", aggregate.propagation_contamination_rate, "probes"),
    ]


def _tokens(result: Result) -> FigureRow:
    share = count_reused_tokens(result)
    tokens = result.aggregate.materialized_tokens
    if tokens is None and share is not None and share.numerator is not None:
        tokens = int(share.numerator)
    made_of = (
        f"{percent(share.value)} of prompt tokens: {counts_of(share)}" if share and share.value is not None else None
    )
    return FigureRow("Tokens reused", count(tokens), made_of, strong=True)


def _quality(aggregate: Aggregate, paired: Paired) -> list[FigureRow]:
    floor = paired.noise_floor or {}

    def beside(name: str) -> str | None:
        value = known(floor.get(name))
        return None if value is None else f"noise floor {number(value)}"

    kl_max = None if known(aggregate.kl_max) is None else f"largest {number(aggregate.kl_max)}"
    answers = [
        ("exact match", aggregate.exact_match),
        ("F1", aggregate.f1),
        ("ROUGE-L", aggregate.rouge_l),
        ("recall", aggregate.token_recall),
    ]
    scores = ", ".join(f"{name} {number(value)}" for name, value in answers if known(value) is not None)
    return [
        FigureRow(
            "KL divergence from cold, mean", number(aggregate.kl_mean), _also(kl_max, beside("kl_mean")), strong=True
        ),
        FigureRow("Perplexity ratio", number(aggregate.ppl_ratio, 4), beside("ppl_ratio")),
        FigureRow("Top-1 agreement", percent(aggregate.top1), beside("top1")),
        _rate("Answers that pass", aggregate.quality_pass_rate, "answers", strong=True),
        FigureRow("Answer scores, mean", scores or NOT_MEASURED),
        FigureRow("ROUGE-L with reuse / cold", _against(paired.warm_rouge_l, paired.cold_rouge_l), beside("rouge_l")),
    ]


def _offline(aggregate: Aggregate) -> list[FigureRow]:
    return [
        _rate("Blocks that an exact cache hits", aggregate.exact_block_hit_rate, "blocks"),
        _rate("Blocks proposed from donors", aggregate.semantic_candidate_block_rate, "blocks"),
        _rate("Blocks eligible for reuse", aggregate.semantic_eligible_block_rate, "blocks", strong=True),
        FigureRow("Eligible beyond exact", difference(aggregate.semantic_eligible_lift), strong=True),
        _rate("Requests with something to reuse", aggregate.semantic_eligible_rate_by_request, "requests"),
        _rate("Blocks confirmed by a backend", aggregate.backend_confirmed_block_rate, "blocks"),
    ]


def _table(content: list[tuple[str, list[FigureRow]]]) -> Html:
    bodies = []
    for title, rows in content:
        lines = [el("tr", el("th", title, colspan=3, scope="rowgroup"), class_="group")]
        for row in rows:
            made_of = el("td", row.made_of, class_="made-of")
            cells = (el("th", row.name, scope="row"), el("td", row.value, class_="value"), made_of)
            lines.append(el("tr", *cells, class_="strong" if row.strong else None))
        bodies.append(el("tbody", *lines))
    head = el("thead", el("tr", *(el("th", name, scope="col") for name in ("Measure", "Value", "Made of"))))
    return el("table", head, *bodies, class_="headline")


def _speed_sentence(paired: Paired | None) -> str | None:
    speedup = paired.blended_ttft_speedup_median if paired else None
    if speedup is None or speedup.value is None:
        return None
    bounds = interval_words(speedup)
    said = (
        f"With reuse the first token came {times(speedup.value)} as fast as cold, in the median over "
        f"{pairs_words(speedup)}{f' ({bounds})' if bounds else ''}."
    )
    low, high = known(speedup.low), known(speedup.high)
    undecided = low is not None and high is not None and low <= 1 <= high
    return f"{said} The interval holds 1: no difference is shown." if undecided else said


def _reuse_sentence(result: Result) -> str | None:
    rate, tokens = find_hit_rate(result), count_reused_tokens(result)
    if rate is None or rate.value is None:
        return None
    whose = "clean pairs" if result.paired and result.paired.hit_rate else "requests"
    said = f"The backend confirmed reuse in {counts_of(rate)} {whose}"
    if tokens is None or tokens.value is None:
        return f"{said}."
    return f"{said}, and for {percent(tokens.value)} of all prompt tokens ({counts_of(tokens)})."


def _quality_sentence(aggregate: Aggregate) -> str | None:
    parts = []
    if known(aggregate.kl_mean) is not None:
        parts.append(f"a mean KL divergence of {number(aggregate.kl_mean)}")
    if known(aggregate.top1) is not None:
        parts.append(f"the same most likely token {percent(aggregate.top1)} of the time")
    if not parts:
        return None
    return f"Against the cold answers this shows {' and '.join(parts)}."


def _control_sentence(aggregate: Aggregate) -> str | None:
    by_request = aggregate.negative_control_backend_confirmed_rate_by_request
    rate = by_request or aggregate.negative_control_backend_confirmed_rate
    if rate is None or rate.value is None:
        return None
    if rate.numerator == 0:
        return f"Negative controls stayed cold (0 of {rate.denominator:,.0f})."
    return f"Negative controls did not stay cold: {counts_of(rate)} reused."


def _offline_sentence(aggregate: Aggregate) -> str | None:
    eligible, exact = aggregate.semantic_eligible_block_rate, aggregate.exact_block_hit_rate
    if eligible is None or exact is None or eligible.value is None or exact.value is None:
        return None
    return (
        f"An exact block cache would hit {percent(exact.value)} of the blocks ({counts_of(exact)}); "
        f"the provider found {percent(eligible.value)} eligible ({counts_of(eligible)}). No engine took part."
    )


def _offline_control_sentence(aggregate: Aggregate) -> str | None:
    rate = aggregate.negative_control_semantic_eligible_rate_by_request
    if rate is None or rate.value is None:
        return None
    return f"Of the negative controls {counts_of(rate)} would have been given something to reuse."


def _rate(name: str, rate: Rate | None, unit: str, *, strong: bool = False) -> FigureRow:
    counts = counts_of(rate)
    value = NOT_MEASURED if rate is None or counts is None else percent(rate.value)
    return FigureRow(name, value, f"{counts} {unit}" if counts else None, strong)


def _interval(name: str, interval: Interval | None, *, strong: bool = False) -> FigureRow:
    return FigureRow(name, times(_value(interval)), _also(interval_words(interval), pairs_words(interval)), strong)


def _bounds(interval: Interval | None, unit: str) -> Child:
    return _also(interval_words(interval, unit), pairs_words(interval))


def _value(interval: Interval | None) -> float | None:
    return interval.value if interval else None


def _clean(paired: Paired) -> str | None:
    if not paired.clean_pairs:
        return None
    dropped = sum(paired.dropped.values())
    return f"{paired.clean_pairs:,} clean pairs" + (f", {dropped:,} dropped" if dropped else "")


def _against(warm: float | None, cold: float | None) -> Html | str:
    if known(warm) is None and known(cold) is None:
        return NOT_MEASURED
    return join((number(warm), " / ", number(cold)))


def _also(*parts: str | None) -> str | None:
    return ", ".join(part for part in parts if part) or None
