"""The published figures, by their published names. matplotlib comes with the extra ``laboratory``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from sembench.laboratory.results import LaboratoryResult, PolicyFigures
from sembench.schema import InputError, Interval
from semblend_core import MissingExtraError, require_extra

Draw = Callable[[Any, LaboratoryResult], None]
_DARK, _LIGHT, _BEST = "#2f5d8a", "#8fb3d4", "#777777"
ADAPTIVE = "adaptive_semantic"


def require_plots() -> None:
    """Said before a run starts, not after it."""
    try:
        require_extra("matplotlib", distribution="sembench", extra="laboratory")
    except MissingExtraError as error:
        raise InputError(f"the figures need matplotlib: {error}; or leave them out with --no-plots") from None


def figures_for(result: LaboratoryResult) -> dict[str, bytes]:
    """File name to PNG. Same result, same picture."""
    drawn = EXPERIMENT_FIGURES if result.kind == "experiment" else REPLAY_FIGURES
    return {name: _png(draw, result) for name, draw in drawn.items()}


def _png(draw: Draw, result: LaboratoryResult) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    draw(axes, result)
    axes.spines[["top", "right"]].set_visible(False)
    picture = BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def _bars(axes: Any, result: LaboratoryResult, metric: str, title: str, unit: str) -> None:
    """A bar per policy with its interval, and Belady's last."""
    shown = [*result.policies, result.belady]
    for place, each in enumerate(shown):
        interval: Interval = getattr(each, metric)
        if interval.value is None:
            continue
        axes.bar(place, interval.value, color=_colour(each), width=0.7)
        if interval.low is not None and interval.high is not None:
            spread = [[interval.value - interval.low], [interval.high - interval.value]]
            axes.errorbar(place, interval.value, yerr=spread, color="black", capsize=3, linewidth=1)
        axes.annotate(f"{interval.value:,.3g}", (place, interval.value), ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(shown)), [each.policy for each in shown], rotation=30, ha="right")
    axes.set_title(f"{result.name}: {title}", fontsize=10)
    axes.set_ylabel(unit)


def _colour(figures: PolicyFigures) -> str:
    return {"belady": _BEST, "lru": _LIGHT}.get(figures.policy, _DARK)


def _ttft(axes: Any, result: LaboratoryResult) -> None:
    _bars(axes, result, "avg_ttft_ms", "mean time to the first token", "ms, simulated")


def _hit_rate(axes: Any, result: LaboratoryResult) -> None:
    _bars(axes, result, "hit_ratio", "blocks from the cache", "share of all blocks")


def _tokens_saved(axes: Any, result: LaboratoryResult) -> None:
    _bars(axes, result, "tokens_saved", "tokens from the cache", "tokens")


def _evictions(axes: Any, result: LaboratoryResult) -> None:
    kinds = sorted({kind for each in result.policies for kind in each.evictions_by_type})
    below = [0.0] * len(result.policies)
    for number, kind in enumerate(kinds):
        heights = [each.evictions_by_type.get(kind, 0.0) for each in result.policies]
        axes.bar(range(len(heights)), heights, bottom=below, label=kind, color=f"C{number}", width=0.7)
        below = [base + height for base, height in zip(below, heights, strict=True)]
    axes.set_xticks(range(len(below)), [each.policy for each in result.policies], rotation=30, ha="right")
    axes.set_title(f"{result.name}: what was evicted", fontsize=10)
    axes.set_ylabel("blocks")
    if kinds:
        axes.legend(fontsize=7)
    else:
        _say(axes, "nothing was evicted")


def _weights(axes: Any, result: LaboratoryResult) -> None:
    story = next((each for each in result.stories if each.weights), None)
    axes.set_title(f"{result.name}: learned weights of kinds of text", fontsize=10)
    axes.set_xlabel("request")
    if story is None:
        _say(axes, f"no policy that learns took part; add {ADAPTIVE} to see its weights")
        return
    at = [request for request, _ in story.weights]
    for kind in sorted({kind for _, weights in story.weights for kind in weights}):
        axes.plot(at, [weights.get(kind) for _, weights in story.weights], label=kind, linewidth=1.3)
    axes.set_ylabel(f"weight in {story.policy}")
    axes.legend(fontsize=7)


def _memory(axes: Any, result: LaboratoryResult) -> None:
    for story in result.stories:
        points = story.memory_utilization
        axes.plot([at for at, _ in points], [100 * share for _, share in points], label=story.policy, linewidth=1.2)
    axes.set_title(f"{result.name}: how full the cache is", fontsize=10)
    axes.set_xlabel("request")
    axes.set_ylabel("% of the budget")
    axes.set_ylim(0, 105)
    axes.legend(fontsize=7)


def _observed(axes: Any, result: LaboratoryResult) -> None:
    axes.set_title(f"{result.name}: observed and simulated time to the first token", fontsize=10)
    axes.set_xlabel("observed, ms")
    axes.set_ylabel("simulated, ms")
    if not result.observed:
        _say(axes, "the trace holds no observed_ttft_ms")
        return
    highest = 0.0
    for policy in result.observed[0].simulated_ttft_ms:
        observed = [each.observed_ttft_ms for each in result.observed]
        simulated = [each.simulated_ttft_ms[policy] for each in result.observed]
        highest = max(highest, *observed, *simulated)
        axes.scatter(observed, simulated, s=8, label=policy, alpha=0.6)
    axes.plot([0, highest], [0, highest], color="black", linewidth=0.8, linestyle="--")
    axes.legend(fontsize=7)


def _say(axes: Any, words: str) -> None:
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, fontsize=9)


EXPERIMENT_FIGURES: Mapping[str, Draw] = {
    "policy_comparison_avg_ttft.png": _ttft,
    "policy_comparison_hit_rate.png": _hit_rate,
    "tokens_saved_by_policy.png": _tokens_saved,
    "evictions_by_semantic_type.png": _evictions,
    "adaptive_weights_over_time.png": _weights,
    "memory_utilization_over_time.png": _memory,
}
REPLAY_FIGURES: Mapping[str, Draw] = {
    "replay_policy_avg_ttft.png": _ttft,
    "replay_tokens_saved.png": _tokens_saved,
    "replay_hit_rate.png": _hit_rate,
    "observed_vs_simulated_ttft.png": _observed,
}
