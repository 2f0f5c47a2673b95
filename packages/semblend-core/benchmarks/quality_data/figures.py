"""Everything the study says, from the records of its cases: by model, by cell, by arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quality_data.design import CURVE_ARMS, CURVE_BUDGETS, JUDGED_ARMS, RIVALS, equal_budget
from quality_data.records import Record, by_cell
from quality_data.summary import interval, mean, ratio_of_means, summarise

Figures = dict[str, Any]
ROTATED = "rotate_only@0"


def figures_of(records: Sequence[Record]) -> Figures:
    """``{model: {cell: figures}}``."""
    return {model: {cell: _cell(cases) for cell, cases in cells.items()} for model, cells in by_cell(records).items()}


def _cell(cases: list[Record]) -> Figures:
    reusable = [case for case in cases if case["trials"]]
    transform = cases[0]["transform"]
    figures: Figures = {
        "transform": transform,
        "prompt_tokens": cases[0]["prompt_tokens"],
        "continuation_tokens": cases[0]["continuation_tokens"],
        "n": len(reusable),
        "cases": [cases[0]["number"], cases[-1]["number"]],
        "declined": len([case for case in cases if not case["trials"] and not case.get("too_long")]),
        "arms": {},
    }
    keys = sorted({key for case in reusable for key in case["trials"]})
    for key in keys:
        figures["arms"][key] = _arm([case for case in reusable if key in case["trials"]], key)
    figures["against"] = _against(reusable, transform)
    figures["curves"] = _curves(reusable)
    return figures | _noise(cases)


def _arm(cases: list[Record], key: str) -> Figures:
    rotated = [case["trials"][ROTATED] for case in cases] if all(ROTATED in case["trials"] for case in cases) else None
    figures = summarise([case["trials"][key] for case in cases], rotated)
    answered = [case for case in cases if case["cold_answer"] is not None and case["trials"][key]["answer"] is not None]
    if answered:
        ours = [case["trials"][key]["answer"] for case in answered]
        cold = [case["cold_answer"] for case in answered]
        figures["answered"] = len(answered)
        figures["answer"], figures["cold_answer"] = mean(ours), mean(cold)
        figures["answer_loss_interval"] = interval([one - other for one, other in zip(cold, ours, strict=True)])
        if mean(cold) > 0:
            figures["answer_by_cold"] = ratio_of_means(ours, cold)
    return figures


def _against(cases: list[Record], transform: str) -> Figures:
    """Mean KL of a tier by that of another rule at equal budget, over the cases that have both."""
    ratios: Figures = {}
    budget = equal_budget(transform, cases[0]["prompt_tokens"]) if cases else 0.0
    for ours in (f"{arm}@tier" for arm in JUDGED_ARMS):
        for rival, name in RIVALS.items():
            key = f"{name}@{budget:g}"
            both = [case["trials"] for case in cases if ours in case["trials"] and key in case["trials"]]
            if both:
                ratio, low, high = ratio_of_means([t[ours]["kl"] for t in both], [t[key]["kl"] for t in both])
                ratios.setdefault(ours, {})[rival] = {"n": len(both), "kl_ratio": ratio, "low": low, "high": high}
    return ratios


def _curves(cases: list[Record]) -> Figures:
    """Over the budget, each curve over the cases that all of its points have."""
    curves: Figures = {}
    for arm in CURVE_ARMS:
        keys = [f"{arm}@{budget:g}" for budget in CURVE_BUDGETS]
        drawn = [case for case in cases if all(key in case["trials"] for key in keys)]
        if drawn:
            curves[arm] = {key.rpartition("@")[2]: _arm(drawn, key) for key in keys}
    return curves


def _noise(cases: list[Record]) -> Figures:
    """What is no effect of reuse: cold against cold in another shape, and KV stored as fp8."""
    noise: Figures = {}
    for name in ("floor", "fp8_floor"):
        having = [case[name] for case in cases if name in case]
        if having:
            noise[name] = {key: mean([each[key] for each in having]) for key in having[0]}
    errors = [case["full_recompute_max_abs"] for case in cases if "full_recompute_max_abs" in case]
    if errors:
        noise["full_recompute_max_abs"] = max(errors)
    deviations = [case["layer_deviation"] for case in cases if "layer_deviation" in case]
    if deviations:
        noise["layer_deviation"] = [round(mean(layer), 5) for layer in zip(*deviations, strict=True)]
    return noise
