"""Tables of a run, in Markdown: policies side by side, the offline optimum last."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sembench.laboratory.results import BASELINE, BELADY, LaboratoryResult, PolicyFigures
from sembench.schema import Interval

NOTICE = (
    "All times are simulated estimates from a latency model, not measured GPU latency. Use them to compare policies on "
    "the same requests. `belady` knows the future: no policy can do better."
)


def _share(interval: Interval) -> str:
    return _with_interval(interval, 1, lambda value: f"{value:.4f}")


def _number(interval: Interval) -> str:
    return _with_interval(interval, 1, lambda value: f"{value:,.1f}")


def _percent(interval: Interval) -> str:
    return _with_interval(interval, 1, lambda value: f"{value:+.2f}%")


def _percent_of_way(interval: Interval) -> str:
    return _with_interval(interval, 100, lambda value: f"{value:.0f}%")


ROWS: tuple[tuple[str, str, Callable[[Interval], str]], ...] = (
    ("hit ratio (blocks)", "hit_ratio", _share),
    ("byte ratio (tokens)", "byte_ratio", _share),
    ("compute saved", "compute_saved", _share),
    ("mean TTFT, ms (simulated)", "avg_ttft_ms", _number),
    ("p95 TTFT, ms (simulated)", "p95_ttft_ms", _number),
    ("TTFT gain over LRU", "ttft_gain_over_lru_percent", _percent),
    ("of the way from LRU to Belady", "of_the_way_to_belady", _percent_of_way),
    ("tokens saved", "tokens_saved", _number),
    ("evictions", "evictions", _number),
    ("regrets", "regrets", _number),
)


def summary_of(result: LaboratoryResult) -> str:
    """``summary.md``."""
    columns = [*result.policies, result.belady]
    head = ["", *(each.policy for each in columns)]
    rows = [[title, *(show(getattr(each, name)) for each in columns)] for title, name, show in ROWS]
    seeds = len({run.seed for run in result.runs})
    config = result.config
    lines = [
        f"# {result.name}",
        "",
        result.description,
        "",
        NOTICE,
        "",
        f"- Cache: {config['semantics']} semantics, {result.budget_tokens:,} tokens{_bytes(config)}.",
        f"- Latency model: {', '.join(f'{name} {value}' for name, value in result.latency.items())}.",
        f"- {_drawn(result, seeds)}",
        "",
        markdown_table(head, rows),
        "",
        verdict(result),
        "",
    ]
    return "\n".join(lines)


def verdict(result: LaboratoryResult) -> str:
    """Who is ahead, in words."""
    known = [each for each in result.policies if each.avg_ttft_ms.value is not None]
    if not known:
        return "Nothing was served."
    best = min(known, key=lambda each: (each.avg_ttft_ms.value or 0.0, each.policy))
    shortest = best.avg_ttft_ms.value or 0.0
    ahead = [each.policy for each in known if math.isclose(each.avg_ttft_ms.value or 0.0, shortest, rel_tol=1e-9)]
    if len(ahead) > 1:
        who = "All policies" if len(ahead) == len(known) else ", ".join(f"**{name}**" for name in ahead)
        return f"{who} have the same mean TTFT, and nobody a shorter one ({shortest:,.1f} ms simulated)."
    text = f"**{best.policy}** has the shortest mean TTFT ({shortest:,.1f} ms simulated)"
    if best.policy != BASELINE and any(each.policy == BASELINE for each in known):
        text += f", {_percent(best.ttft_gain_over_lru_percent)} against LRU"
    byte_ratio, most = best.byte_ratio.value, result.belady.byte_ratio.value
    if byte_ratio is not None and most:
        text += f". It saves {byte_ratio / most:.1%} of the tokens that Belady saves"
    return text + "."


def aggregate_summary(results: Sequence[LaboratoryResult]) -> str:
    """``aggregate_summary.md``: one line per experiment with the mean TTFT of each policy, Belady last."""
    policies = list(dict.fromkeys(each.policy for result in results for each in result.policies))
    rows = []
    for result in results:
        by_name = {each.policy: each for each in [*result.policies, result.belady]}
        rows.append([result.name, *(_ttft(by_name.get(policy)) for policy in [*policies, BELADY])])
    head = ["experiment", *policies, BELADY]
    lines = ["# All experiments", "", NOTICE, "", "Mean simulated TTFT in ms, means over seeds with 95% intervals:", ""]
    lines += [markdown_table(head, rows), "", "| experiment | main result |", "|---|---|"]
    lines += [f"| {result.name} | {verdict(result)} |" for result in results]
    return "\n".join([*lines, ""])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _ttft(figures: PolicyFigures | None) -> str:
    return "–" if figures is None else _number(figures.avg_ttft_ms)


def _with_interval(interval: Interval, factor: float, show: Callable[[float], str]) -> str:
    if interval.value is None:
        return "–"
    text = show(factor * interval.value)
    if interval.low is None or interval.high is None:
        return text
    return f"{text} ({show(factor * interval.low)} to {show(factor * interval.high)})"


def _bytes(config: dict[str, object]) -> str:
    budget = config.get("cache_byte_budget")
    return f" ({budget:,} bytes at {config['bytes_per_token']:,} a token)" if budget else ""


def _drawn(result: LaboratoryResult, seeds: int) -> str:
    if result.kind == "replay":
        held = result.trace or {}
        return f"Trace: {', '.join(f'{name} {value}' for name, value in held.items())}."
    return (
        f"Workload `{result.config['workload']}`: {result.config['requests']:,} requests, {seeds} seeds; means with "
        "95% intervals over the seeds."
    )
