"""The study's figures as one JSON, one page of tables, and a plot of the curve of each cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quality_data.bars import judged

SHOWN = {
    "balanced": "balanced tier's policy",
    "balanced_unprobed": "the same without a probe",
    "random": "random",
    "seam_head": "seam head (EPIC's rule)",
    "kv_deviation": "KV deviation (CacheBlend's rule)",
    "seam_head+query_attention+mean_shift": "seams, question attention and mean shift",
    "seam_head+mean_shift": "seam head + mean shift",
    "oracle+mean_shift": "oracle + mean shift",
}


def write_report(figures: dict[str, Any], run: dict[str, Any], folder: Path) -> None:
    """``quality.json``, ``quality-tables.md`` and a plot per cell with a curve."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "quality.json").write_text(json.dumps({"run": run, "models": figures}, indent=1) + "\n")
    sections = [f"## {model}\n\n{_arms(cells)}\n\n{_against(cells)}" for model, cells in figures.items()]
    bars = "\n".join(["## Bars", "", *(f"- {line}" for line in judged(figures))])
    (folder / "quality-tables.md").write_text("\n\n".join([*sections, bars]) + "\n")
    for model, cells in figures.items():
        for name, cell in cells.items():
            if cell["curves"]:
                label = "-".join([model.split()[0].lower(), name.replace("@", "-")])
                _plot(cell, f"{model}, {name.replace('_', ' ')} tokens", folder / f"quality-{label}.svg")


def _arms(cells: dict[str, Any]) -> str:
    lines = [
        "| cell | arm | n | mean KL (95%) | max KL | KL cut (95%) | PPL ratio | top-1 (95%) | equal answers "
        "| recomputed | answer, cold | answer by cold (95%) |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, cell in cells.items():
        for key, arm in cell["arms"].items():
            if key.rpartition("@")[0] not in cell["curves"] or key.endswith("@tier"):
                lines.append(f"| {name} | {key} | " + " | ".join(arm_columns(arm)) + " |")
    return "\n".join(lines)


def arm_columns(arm: dict[str, Any]) -> list[str]:
    answer = f"{arm['answer']:.3f}, {arm['cold_answer']:.3f} ({arm['answered']})" if "answer" in arm else ""
    by_cold = arm.get("answer_by_cold")
    low, high = arm["kl_interval"]
    return [
        str(arm["n"]),
        f"{arm['kl']:.5f} ({low:.5f} to {high:.5f})",
        f"{arm['kl_max']:.2f}",
        f"{arm['kl_cut']:.0%} ({arm['kl_cut_interval'][0]:.0%} to {arm['kl_cut_interval'][1]:.0%})"
        if "kl_cut" in arm
        else "",
        f"{arm['ppl_ratio']:.4f}",
        f"{arm['top1']:.4f} ({arm['top1_interval'][0]:.4f} to {arm['top1_interval'][1]:.4f})",
        f"{arm['equal']:.0%}",
        f"{arm['recompute']:.1%}",
        answer,
        f"{by_cold[0]:.2f} ({by_cold[1]:.2f} to {by_cold[2]:.2f})" if by_cold else "",
    ]


def _against(cells: dict[str, Any]) -> str:
    lines = ["| cell | tier | against | n | ratio of mean KL | 95% interval |", "|---|---|---|---|---|---|"]
    for name, cell in cells.items():
        for tier, rivals in cell["against"].items():
            for rival, found in rivals.items():
                lines.append(
                    f"| {name} | {tier.partition('@')[0]} | {rival} | {found['n']} | {found['kl_ratio']:.2f} "
                    f"| {found['low']:.2f} to {found['high']:.2f} |"
                )
    return "\n".join(lines)


def _plot(cell: dict[str, Any], title: str, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plot

    figure, axes = plot.subplots(figsize=(7.5, 4.5))
    for label, name in SHOWN.items():
        points = [cell["curves"][label][budget] for budget in sorted(cell["curves"].get(label, {}), key=float)]
        if points:
            shares = [100 * point["recompute"] for point in points]
            axes.plot(shares, [point["kl"] for point in points], marker="o", markersize=3, label=name)
    rotated = cell["arms"].get("rotate_only@0")
    if rotated:
        axes.axhline(rotated["kl"], color="gray", linestyle=":", label="nothing recomputed")
    if "fp8_floor" in cell:
        axes.axhline(cell["fp8_floor"]["kl"], color="gray", linestyle="--", label="cold KV stored as fp8")
    axes.set(
        xscale="log", yscale="log", xlabel="recomputed, % of reusable tokens, probes included", ylabel="mean KL (nats)"
    )
    axes.set_title(title)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file)
    plot.close(figure)
