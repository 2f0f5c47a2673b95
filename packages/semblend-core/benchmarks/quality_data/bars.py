"""What the tiers are held to, and whether they hold it. A bar is judged where its cell was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quality_data.cases import FACT_TRANSFORMS
from quality_data.design import JUDGED_ARMS

ENOUGH = 40
"""Cases below which a bar is not judged."""
CUT = {"composite_10@6000": 0.75, "reorder_10@6000": 0.45}
TOP1 = {"composite_10@6000": 0.97, "reorder_10@6000": 0.962}
KL = {"instruction_variant@6000": 0.002}
AGAINST_CACHEBLEND = {"composite_10@6000": 0.45, "reorder_10@6000": 0.7}
ANSWER_LOSS = {f"{transform}@6000": 0.02 for transform in FACT_TRANSFORMS}


def judged(figures: dict[str, Any]) -> Iterator[str]:
    """A line per model, cell, tier and bar."""
    for model, cells in figures.items():
        for name, cell in cells.items():
            for tier in (f"{arm}@tier" for arm in JUDGED_ARMS):
                if tier in cell["arms"]:
                    for holds, text in _bars(name, cell, tier):
                        enough = cell["arms"][tier]["n"] >= ENOUGH
                        verdict = ("holds" if holds else "FAILS") if enough else f"needs {ENOUGH} cases"
                        yield f"{verdict}: {model}, {name}, {tier.partition('@')[0]}: {text}"


def _bars(name: str, cell: dict[str, Any], tier: str) -> Iterator[tuple[bool, str]]:
    arm = cell["arms"][tier]
    if name in CUT and "kl_cut" in arm:
        low, high = arm["kl_cut_interval"]
        yield (
            arm["kl_cut"] >= CUT[name],
            f"KL cut {arm['kl_cut']:.0%} ({low:.0%} to {high:.0%}), at least {CUT[name]:.0%}",
        )
    if name in TOP1:
        low, high = arm["top1_interval"]
        yield arm["top1"] >= TOP1[name], f"top-1 {arm['top1']:.4f} ({low:.4f} to {high:.4f}), at least {TOP1[name]}"
    if name in KL:
        low, high = arm["kl_interval"]
        yield arm["kl"] <= KL[name], f"mean KL {arm['kl']:.5f} ({low:.5f} to {high:.5f}), at most {KL[name]}"
    rival = cell["against"].get(tier, {}).get("CacheBlend's rule")
    if name in AGAINST_CACHEBLEND and rival:
        most = AGAINST_CACHEBLEND[name]
        yield (
            rival["kl_ratio"] <= most,
            f"KL by CacheBlend's {rival['kl_ratio']:.2f} ({rival['low']:.2f} to {rival['high']:.2f}), at most {most}",
        )
    if name in ANSWER_LOSS and "answer" in arm:
        loss, (low, high) = arm["cold_answer"] - arm["answer"], arm["answer_loss_interval"]
        yield loss <= ANSWER_LOSS[name], f"answers {loss:+.3f} below cold ({low:+.3f} to {high:+.3f}), at most 0.02"
