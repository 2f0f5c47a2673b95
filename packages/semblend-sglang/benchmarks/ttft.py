"""Time to first token of a real SGLang with SemBlend: cold, exact prefix, and reuse at other positions, in one process.

Before anything is timed: relocated K and V of the first layer must be those of a cold run, also where nothing moves,
and of a prompt that was served with reuse the exact cache must know no more than what was computed in front.

    python benchmarks/ttft.py CONFIG_DIR --sizes 8192 32000
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

from semblend_core.testing.benchmarks import INSTRUCTION, LEAST_TOKENS, Prompts, as_text, checked, deliver, options_of

CASES = ("new_instruction", "reorder", "composite")
LARGEST_ERROR = {"float32": 1e-4, "bfloat16": 1e-2}


def check(engine: Engine, prompts: Prompts, size: int, largest_error: float) -> list[dict[str, Any]]:
    """Raises where what is reused is not what would have been computed."""
    engine.first_token_ms(prompts.fresh(size))  # The self-test needs one prompt to look at.
    compared = []
    for name in ("same_place", *CASES):
        material = getattr(prompts, name)(size)
        for donor in material.donors:
            engine.first_token_ms(donor)
        result = {"case": name, **engine.first_layer_errors(material.recipient())}
        print("check", json.dumps(result), flush=True)
        assert result["reused"] > size // 2, (
            f"{name}: nothing was reused; the last outcomes were {engine.last_outcomes()}"
        )
        # What begins a prompt was computed in its place: it is exact, and known afterwards.
        assert result["cached_when_cold"] <= INSTRUCTION, f"{name}: the exact cache holds approximate KV"
        assert result["key_error"] <= largest_error, f"{name}: relocated K is not cold K"
        assert result["value_error"] <= largest_error, f"{name}: relocated V is not cold V"
        compared.append(result)
    return compared


def measure(engine: Engine, prompts: Prompts, size: int, repeats: int, cases: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name in cases:
        times: dict[str, list[float]] = {"cold": [], "exact": [], "reuse": []}
        reused = []
        for turn in range(repeats + 1):
            one = one_turn(engine, getattr(prompts, name), size)
            if turn:  # The first warms up.
                for arm in times:
                    times[arm].append(one[arm])
                reused.append(one["reused"])
        rows.append(summary(name, size, times, reused))
        print_row(rows[-1])
    return rows


def one_turn(engine: Engine, make: Callable[[int], Any], size: int) -> dict[str, float]:
    material = make(size)
    recipient = material.recipient()
    for donor in material.donors:
        engine.first_token_ms(donor)
    reuse, reused = engine.first_token_ms(recipient)
    assert reused > size // 2, f"only {reused} tokens were reused; the last outcomes were {engine.last_outcomes()}"
    cold, cached = engine.first_token_ms(recipient, reuse=False)
    assert cached <= INSTRUCTION, f"the cold arm was not cold: the exact cache knew {cached} tokens"
    exact, cached = engine.first_token_ms(recipient[:-8] + [5] * 8, reuse=False)
    assert cached > size - 64, "the exact arm was not exact"
    return {"cold": cold, "exact": exact, "reuse": reuse, "reused": reused}


def summary(name: str, size: int, times: dict[str, list[float]], reused: list[float]) -> dict[str, Any]:
    medians = {arm: statistics.median(values) for arm, values in times.items()}
    return {
        "case": name,
        "tokens": size,
        "reused": statistics.median(reused),
        **{f"{arm}_ms": round(value, 2) for arm, value in medians.items()},
        "speedup": round(medians["cold"] / medians["reuse"], 2),
        "over_exact": round(medians["reuse"] / medians["exact"], 2),
        "all_ms": {arm: [round(value, 1) for value in values] for arm, values in times.items()},
    }


def print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['case']:16} {row['tokens']:6d} tokens  cold {row['cold_ms']:8.1f}  exact {row['exact_ms']:7.1f}  "
        f"reuse {row['reuse_ms']:7.1f} ms  {row['speedup']:5.1f}x  {row['over_exact']:.2f} of exact  "
        f"{row['reused']:.0f} reused",
        flush=True,
    )


def steps(engine: Engine) -> dict[str, Any]:
    """Median milliseconds of SemBlend's own steps, on the scheduler's thread."""
    taken: dict[str, list[float]] = {}
    for entry in engine.inspection():
        if "ms" in entry:
            taken.setdefault(entry["what"], []).append(entry["ms"])
    return {name: {"median": round(statistics.median(all_ms), 2), "max": max(all_ms)} for name, all_ms in taken.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=checked.positive, nargs="+", default=[8192, 32000])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--repeats", type=checked.positive, default=5)
    parser.add_argument("--check-size", type=checked.positive, default=4096)
    parser.add_argument("--no-check", action="store_true")


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    sizes = [*options.sizes, *([] if options.no_check else [options.check_size])]
    too_short = checked.why_too_short("--sizes or --check-size", min(sizes), LEAST_TOKENS)
    return too_short or checked.why_too_long(max(sizes) + 1, options)


def main() -> None:
    options = options_of(__doc__, add_engine_options, add_options, why_not=why_not)
    # Reuse is timed, whether it pays or not.
    os.environ.setdefault("SEMBLEND_COST_GATE", "0")
    os.environ.setdefault("SEMBLEND_SHARING", "all")  # The prompts carry no salt.
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    engine = Engine(options, timed=True)
    limit = LARGEST_ERROR["float32" if options.dtype == "float32" else "bfloat16"]
    compared = [] if options.no_check else check(engine, prompts, options.check_size, limit)
    rows = [row for size in options.sizes for row in measure(engine, prompts, size, options.repeats, options.cases)]
    result = {"host": platform.node(), "options": as_text(options), "rows": rows}
    result |= {"checked": compared, "steps_ms": steps(engine), "runs_with": engine.runs_with()}
    print(json.dumps({"steps_ms": result["steps_ms"], "runs_with": result["runs_with"]}), flush=True)
    deliver(result, options)
    engine.close()


if __name__ == "__main__":
    main()
