"""The study's plots and tables as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quality_data.design import equal_budget

_SHOWN = {
    "random": "random",
    "seam_head": "seam head (EPIC's rule)",
    "kv_deviation": "KV deviation (CacheBlend's rule)",
    "query_attention": "query attention",
    "seam_head+query_attention": "seam head + query attention",
    "seam_head+query_attention+mean_shift": "the same + mean shift (balanced)",
    "seam_head+mean_shift": "seam head + mean shift",
    "seam_and_tail": "seam and tail",
    "oracle": "oracle",
}


def write_report(figures: dict[str, Any], folder: Path) -> None:
    """``quality.json``, ``quality-tables.md`` and a plot per transform."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "quality.json").write_text(json.dumps(figures, indent=1) + "\n")
    (folder / "quality-tables.md").write_text("\n\n".join([_tiers(figures), _equal_budget(figures), _against(figures)]))
    for transform, curves in figures["curves"].items():
        _plot(figures, transform, curves, folder / f"quality-{transform}.svg")


def _tiers(figures: dict[str, Any]) -> str:
    lines = [
        "| tier | transform | n | mean KL (95%) | max KL | KL cut | PPL ratio | top-1 | recomputed | FLOPs saved "
        "| answer, cold answer |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for tier in ("rotate_only", "fast", "balanced"):
        for transform, cell in figures[tier].items():
            low, high = cell["kl_interval"]
            answer = f"{cell['answer']:.3f}, {cell['cold_answer']:.3f} ({cell['answered']})" if "answer" in cell else ""
            lines.append(
                f"| {tier} | {transform} | {cell['n']} | {cell['kl']:.5f} ({low:.5f} to {high:.5f}) "
                f"| {cell['kl_max']:.2f} | {cell['kl_cut']:.0%} | {cell['ppl_ratio']:.4f} | {cell['top1']:.4f} "
                f"| {cell['recompute']:.1%} | {cell['flops_saved']:.1%} | {answer} |"
            )
    return "\n".join(lines)


def _equal_budget(figures: dict[str, Any]) -> str:
    transforms = list(figures["curves"])
    lines = [
        "| policy | "
        + " | ".join(
            f"{name}, {equal_budget(name):.0%}, n = {figures['equal_budget'][name]['n']}" for name in transforms
        )
        + " |",
        "|---|" + "---|" * len(transforms),
    ]
    for label in ("rotate_only", "balanced", *sorted({key for curve in figures["curves"].values() for key in curve})):
        cells = [figures["equal_budget"][name].get(label) or figures.get(label, {}).get(name) for name in transforms]
        shown = [f"{cell['kl']:.5f} / {cell['ppl_ratio']:.4f} / {cell['top1']:.4f}" if cell else "" for cell in cells]
        lines.append(f"| {label} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _against(figures: dict[str, Any]) -> str:
    lines = ["| balanced against | transform | ratio of mean KL | 95% interval |", "|---|---|---|---|"]
    for transform, rivals in figures["against"].items():
        for rival, found in rivals.items():
            lines.append(
                f"| {rival} | {transform} | {found['kl_ratio']:.2f} | {found['low']:.2f} to {found['high']:.2f} |"
            )
    return "\n".join(lines)


def _plot(figures: dict[str, Any], transform: str, curves: dict[str, Any], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plot

    figure, axes = plot.subplots(figsize=(7.5, 4.5))
    for label, name in _SHOWN.items():
        budgets = sorted(curves.get(label, {}), key=float)
        if budgets:
            shares = [100 * curves[label][budget]["recompute"] for budget in budgets]
            axes.plot(shares, [curves[label][budget]["kl"] for budget in budgets], marker="o", markersize=3, label=name)
    axes.axhline(
        figures["equal_budget"][transform]["rotate_only"]["kl"], color="gray", linestyle=":", label="nothing recomputed"
    )
    if "fp8_floor" in figures:
        axes.axhline(figures["fp8_floor"]["kl"], color="gray", linestyle="--", label="cold KV stored as fp8")
    axes.set(
        xscale="log", yscale="log", xlabel="recomputed, % of reusable tokens, probes included", ylabel="mean KL (nats)"
    )
    axes.set_title(transform.replace("_", " "))
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file)
    plot.close(figure)
