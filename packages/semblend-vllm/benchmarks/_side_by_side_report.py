"""What the arms of side_by_side.py did, in figures. Reuse is what a connector confirmed, never what it promised."""

from __future__ import annotations

import math
import statistics
from typing import Any

ROUNDING = 1e-3
"""In nats, of a log-probability: what other shapes of a batch make of it in float32."""
CONTROL = "negative_control"
COLUMNS = (
    ("hit_rate", "items with confirmed reuse"),
    ("confirmed_share", "tokens reused"),
    ("exact_share", "tokens of exact prefix"),
    ("ttft_ms", "TTFT ms"),
    ("speedup", "over cold"),
    ("kl", "KL to cold"),
    ("same_text", "same text"),
    ("polluted", "polluted probes"),
    ("controls_reused", "controls reused"),
    ("miss_tax_ms", "miss tax ms"),
)


def summary(records: list[dict[str, Any]], arm: str) -> dict[str, Any]:
    wanted = [record for record in records if record["transform"] != CONTROL]
    controls = [record for record in records if record["transform"] == CONTROL]
    warm = [record["arms"][arm]["warm"] for record in wanted]
    prompt_tokens = sum(answer["prompt_tokens"] for answer in warm)
    hits = [answer for answer in warm if answer["confirmed_tokens"]]
    return {
        "hit_rate": f"{len(hits)} of {len(wanted)}",
        "confirmed_tokens": sum(answer["confirmed_tokens"] for answer in warm),
        "prompt_tokens": prompt_tokens,
        "confirmed_share": round(sum(answer["confirmed_tokens"] for answer in warm) / prompt_tokens, 3),
        "exact_share": round(sum(answer["exact_prefix"] for answer in warm) / prompt_tokens, 3),
        "ttft_ms": round(statistics.median(answer["ttft_ms"] for answer in warm)),
        "speedup": speedup(wanted, arm),
        "kl": round(statistics.mean(divergence(r["cold"], r["arms"][arm]["warm"]) for r in wanted), 5),
        "same_text": f"{sum(same_text(record, arm) for record in wanted)} of {len(wanted)}",
        "polluted": f"{sum(polluted(record, arm) for record in records)} of {len(records)}",
        "controls_reused": sum(record["arms"][arm]["warm"]["confirmed_tokens"] for record in controls),
        "miss_tax_ms": miss_tax(records, arm),
        "by_transform": {name: by_transform(records, arm, name) for name in sorted({r["transform"] for r in records})},
    }


def by_transform(records: list[dict[str, Any]], arm: str, transform: str) -> dict[str, Any]:
    chosen = [record for record in records if record["transform"] == transform]
    warm = [record["arms"][arm]["warm"] for record in chosen]
    return {
        "items": len(chosen),
        "prompt_tokens": sum(answer["prompt_tokens"] for answer in warm),
        "exact_tokens": sum(answer["exact_prefix"] for answer in warm),
        "confirmed_tokens": sum(answer["confirmed_tokens"] for answer in warm),
        "ttft_ms": round(statistics.median(answer["ttft_ms"] for answer in warm)),
        "speedup": speedup(chosen, arm),
        "kl": round(statistics.mean(divergence(r["cold"], r["arms"][arm]["warm"]) for r in chosen), 5),
    }


def speedup(records: list[dict[str, Any]], arm: str) -> float:
    ratios = [float(r["cold"]["ttft_ms"] / r["arms"][arm]["warm"]["ttft_ms"]) for r in records]
    return round(statistics.median(ratios), 2)


def same_text(record: dict[str, Any], arm: str) -> bool:
    return bool(record["arms"][arm]["warm"]["text"] == record["cold"]["text"])


def polluted(record: dict[str, Any], arm: str) -> bool:
    """The probe, asked with reuse off, is not answered as a cold prompt is: what it found in the cache is not exact."""
    cold, probe = record["cold"], record["arms"][arm]["probe"]
    return bool(probe["text"] != cold["text"] or strays(cold, probe) > ROUNDING)


def strays(cold: dict[str, Any], other: dict[str, Any]) -> float:
    """How far the log-probability of any step's likeliest token is off; both answered the same."""
    likeliest = [(step, max(step, key=step.__getitem__)) for step in cold["logprobs"]]
    return max(
        abs(step[token] - theirs.get(token, -math.inf))
        for (step, token), theirs in zip(likeliest, other["logprobs"], strict=True)
    )


def miss_tax(records: list[dict[str, Any]], arm: str) -> float | None:
    """Milliseconds more than stock vLLM for the same prompt, where neither had anything to reuse."""
    taxes = []
    for record in records:
        ours, stock = record["arms"][arm]["warm"], record["arms"]["stock"]["warm"]
        if not ours["confirmed_tokens"] and ours["exact_prefix"] == stock["exact_prefix"] == 0:
            taxes.append(ours["ttft_ms"] - stock["ttft_ms"])
    return round(statistics.median(taxes)) if taxes and arm != "stock" else None


def divergence(cold: dict[str, Any], other: dict[str, Any]) -> float:
    """Mean KL(cold || other) in nats over the steps up to the first that answers differently, by the top 20 of each."""
    total, steps = 0.0, 0
    for ours, theirs in zip(cold["logprobs"], other["logprobs"], strict=True):
        floor = min(theirs.values())
        total += sum(math.exp(value) * (value - theirs.get(token, floor)) for token, value in ours.items())
        steps += 1
        if max(ours, key=ours.__getitem__) != max(theirs, key=theirs.__getitem__):
            break
    return total / steps


def table(result: dict[str, Any]) -> str:
    lines = [f"{result['host']}, {result['date']}", "| arm | " + " | ".join(title for _, title in COLUMNS) + " |"]
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for arm, figures in result["arms"].items():
        cells = ("-" if figures[key] is None else str(figures[key]) for key, _ in COLUMNS)
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
