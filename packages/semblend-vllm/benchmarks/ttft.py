"""Time to first token of a real vLLM with SemBlend: cold, exact prefix, and reuse at other positions, in one process.

VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/ttft.py CONFIG_DIR --sizes 8192 32000
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable
from typing import Any

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import LEAST_TOKENS, Prompts, as_text, checked, deliver, options_of


def measure(engine: Engine, prompts: Prompts, size: int, repeats: int) -> list[dict[str, Any]]:
    rows = []
    for name, make in (
        ("new_instruction", prompts.new_instruction),
        ("reorder_4", prompts.reorder),
        ("composite_4", prompts.composite),
    ):
        times: dict[str, list[float]] = {"cold": [], "exact": [], "reuse": []}
        reused = []
        for turn in range(repeats + 1):
            one = one_turn(engine, make, size, f"{name}-{size}-{turn}")
            if turn:  # The first warms up, and the self-test needs prompts to look at.
                assert one["reused"] or engine.side is None, f"nothing was reused; the self-test: {engine.self_test()}"
                for arm in times:
                    times[arm].append(one[arm])
                reused.append(one["reused"])
        rows.append(summary(name, size, times, reused))
        print_row(rows[-1])
    return rows


def one_turn(engine: Engine, make: Callable[[int], Any], size: int, salt: str) -> dict[str, float]:
    material = make(size)
    recipient = material.recipient()
    for donor in material.donors:
        engine.first_token_ms(donor, salt)
    engine.settle()
    reuse, reused = engine.first_token_ms(recipient, salt)
    engine.settle()
    cold, cached = engine.first_token_ms(recipient, salt + "-cold", "off")
    assert cached == 0, "the cold arm was not cold"
    exact, _ = engine.first_token_ms(recipient[:-8] + [5] * 8, salt + "-cold", "off")
    return {"cold": cold, "exact": exact, "reuse": reuse, "reused": reused}


def measure_misses(engine: Engine, prompts: Prompts, size: int, repeats: int) -> dict[str, Any]:
    """What a prompt pays that finds nothing: not looked up, looked up, looked up and captured."""
    wishes = {"off": "off", "looked_up": {"capture": False}, "captured": {"capture": True}}
    times: dict[str, list[float]] = {arm: [] for arm in wishes}
    for turn in range(repeats + 1):
        for arm, wish in wishes.items():
            took, cached = engine.first_token_ms(prompts.fresh(size), f"miss-{turn}", wish)
            assert cached == 0, "a prompt of fresh ids found something"
            if turn:
                times[arm].append(took)
    medians = {arm: statistics.median(values) for arm, values in times.items()}
    row = {
        "case": "miss",
        "tokens": size,
        **{f"{arm}_ms": round(value, 2) for arm, value in medians.items()},
        "miss_tax": round(medians["looked_up"] / medians["off"] - 1, 4),
        "capture_tax": round(medians["captured"] / medians["looked_up"] - 1, 4),
    }
    print(json.dumps(row), flush=True)
    return row


def summary(name: str, size: int, times: dict[str, list[float]], reused: list[float]) -> dict[str, Any]:
    medians = {arm: statistics.median(values) for arm, values in times.items()}
    return {
        "case": name,
        "tokens": size,
        "reused": statistics.median(reused),
        **{f"{arm}_ms": round(value, 2) for arm, value in medians.items()},
        "speedup": round(medians["cold"] / medians["reuse"], 2),
        "over_exact": round(medians["reuse"] / medians["exact"], 2),
        "reuse_all_ms": [round(value, 1) for value in times["reuse"]],
    }


def print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['case']:16} {row['tokens']:6d} tokens  cold {row['cold_ms']:8.1f}  exact {row['exact_ms']:7.1f}  "
        f"reuse {row['reuse_ms']:7.1f} ms  {row['speedup']:5.1f}x  {row['over_exact']:.2f} of exact  "
        f"{row['reused']:.0f} reused",
        flush=True,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=checked.positive, nargs="+", default=[8192, 16384, 32000])
    parser.add_argument("--repeats", type=checked.positive, default=5)
    parser.add_argument(
        "--misses", type=checked.positive, help="also measure what prompts of this size pay that find nothing"
    )


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    sizes = [*options.sizes, *([options.misses] if options.misses else [])]
    too_short = checked.why_too_short("--sizes or --misses", min(sizes), LEAST_TOKENS)
    return too_short or checked.why_too_long(max(sizes) + 1, options)


def main() -> None:
    options = options_of(__doc__, add_engine_options, add_options, why_not=why_not)
    # Reuse is timed, whether it pays or not.
    os.environ.setdefault("SEMBLEND_COST_GATE", "0")
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    engine = Engine(options)
    rows = [row for size in options.sizes for row in measure(engine, prompts, size, options.repeats)]
    if options.misses:
        rows.append(measure_misses(engine, prompts, options.misses, 3 * options.repeats))
    result = {"host": platform.node(), "options": as_text(options), "rows": rows}
    deliver(result, options)


if __name__ == "__main__":
    main()
