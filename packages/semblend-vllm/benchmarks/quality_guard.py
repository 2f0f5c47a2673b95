"""The live guard in a real vLLM: what it costs, and whether it notices a broken correction.

VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/quality_guard.py MODEL --real-weights --text ../../docs \
    --tier balanced --graphs --json FILE
... --cpu --dtype float32 --context 2048 --batch 2048 --tokens 600 --output-tokens 24 --requests 4    tries it out

`cost`: requests per second on traffic of which half is reusable, with the guard's default share, with all that is
reused compared, and without; in turns. `broken`: passages of several prompts, each answer compared. After some right
ones the correction's sign is turned round, and the guard must spend more or decline until the target is held again.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from dataclasses import replace
from typing import Any

from _engine_under_test import Engine, add_engine_options

from semblend_core import Settings
from semblend_core.recompute import MeanShift
from semblend_core.testing.benchmarks import Pairs, Prompts, checked, deliver, options_of
from semblend_vllm.scheduler import long_claims, orders

LEAST_PAGE = 16
ARMS = {"off": 0.0, "default": Settings().quality_share, "all": 1.0}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", default=["cost", "broken"], choices=["cost", "broken"])
    parser.add_argument("--tokens", type=checked.positive, default=6000, help="of a prompt")
    parser.add_argument("--output-tokens", type=checked.positive, default=64)
    parser.add_argument("--requests", type=checked.positive, default=64, help="of a round of `cost`")
    parser.add_argument("--rounds", type=checked.positive, default=8)
    parser.add_argument("--in-flight", type=checked.positive, default=8)
    parser.add_argument("--passages", type=checked.positive, default=4, help="of `broken`")
    parser.add_argument(
        "--about-the-same", type=checked.positive, default=4, help="requests of `broken` over the same passages"
    )
    parser.add_argument(
        "--right", type=checked.positive, default=20, help="answers of `broken` before the correction breaks"
    )
    parser.add_argument("--most", type=checked.positive, default=200, help="answers of `broken` after it broke")
    parser.add_argument("--target", type=checked.from_0_to_1, default=Settings().quality_target)


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    least = 64 + options.passages * (16 + LEAST_PAGE)
    too_long = checked.why_too_long(options.tokens + options.output_tokens, options)
    return checked.why_too_short("--tokens", options.tokens, least) or too_long


def main() -> None:
    options = options_of(__doc__, add_engine_options, add_options, why_not=why_not)
    # What a gate declines is not compared: on a busy or slow machine that is nearly all.
    os.environ.setdefault("SEMBLEND_COST_GATE", "0")
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    engine = Engine(options)
    warm_up(engine, prompts, options)
    result: dict[str, Any] = {"engine": engine.name, "model": options.model.name, "tier": options.tier}
    if "cost" in options.parts:
        result["cost"] = cost(engine, prompts, options)
    if "broken" in options.parts:
        result["broken"] = broken(engine, prompts, options)
    deliver(result, options)


def guard_with(engine: Engine, *, share: float, target: float = 0.0) -> Any:
    guard = engine.side.guard
    guard._settings = replace(guard._settings, quality_share=share, quality_target=target)
    guard._controller = type(guard._controller)(target)
    guard.clear()
    return guard


def warm_up(engine: Engine, prompts: Prompts, options: argparse.Namespace) -> None:
    guard_with(engine, share=0.0)
    serve(engine, [prompts.fresh(options.tokens) for _ in range(8)], options, "warm-up")
    engine.settle()


def serve(engine: Engine, asked: list[list[int]], options: argparse.Namespace, salt: str, output: int = 0) -> None:
    engine.serve(asked, salt, output or options.output_tokens, options.in_flight)


def be_idle(engine: Engine) -> None:
    """As an engine process is between two requests."""
    while engine.llm.llm_engine.engine_core.engine_core.scheduler.has_requests():
        engine.llm.llm_engine.step()


# --- What it costs ---------------------------------------------------------------------------------------------------


def cost(engine: Engine, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    compared = dict.fromkeys(ARMS, 0)
    for number in range(options.rounds):
        for arm in random.Random(number).sample(list(ARMS), len(ARMS)):
            asked = half_reusable(engine, prompts, options, f"{arm}-{number}")
            guard = guard_with(engine, share=ARMS[arm])
            counted = counting(guard)
            started = time.perf_counter()
            serve(engine, asked, options, f"{arm}-{number}")
            be_idle(engine)  # What is compared once all are answered counts too.
            seconds[arm].append(time.perf_counter() - started)
            compared[arm] += counted["compared"]
            print(f"round {number + 1}, {arm}: {options.requests / seconds[arm][-1]:.3f} requests/s", flush=True)
    return {
        "requests_per_s": {arm: round(options.requests / statistics.median(each), 3) for arm, each in seconds.items()},
        "time_by_off": {arm: str(Pairs(seconds[arm], seconds["off"]).ratio()) for arm in ARMS if arm != "off"},
        "compared": compared,
        "all": seconds,
    }


def half_reusable(engine: Engine, prompts: Prompts, options: argparse.Namespace, salt: str) -> list[list[int]]:
    guard_with(engine, share=0.0)
    asked = []
    for number in range(options.requests):
        if number % 2:
            material = prompts.new_instruction(options.tokens)
            serve(engine, material.donors, options, salt, output=1)
            asked.append(material.recipient())
        else:
            asked.append(prompts.fresh(options.tokens))
    engine.settle()
    return asked


def counting(guard: Any) -> dict[str, int]:
    """Of comparisons, by what came of them."""
    counted = {"compared": 0}

    def count(result: str) -> None:
        counted[result] = counted.get(result, 0) + 1

    guard.news.count = count
    return counted


# --- Whether it notices ----------------------------------------------------------------------------------------------


def broken(engine: Engine, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    guard = guard_with(engine, share=1.0, target=options.target)
    counted, rows = counting(guard), []
    agreements: list[float] = []
    compare = guard._controller.compared

    def compared(kind: str, spending: float, agreement: float) -> bool:
        agreements.append(agreement)
        return bool(compare(kind, spending, agreement))

    guard._controller.compared = compared
    pages: list[list[int]] = []
    for number in range(options.right + options.most):
        if number == options.right:
            break_the_correction()
        salt = f"broken-{number // options.about_the_same}"
        if number % options.about_the_same == 0:
            pages = serve_donors(engine, prompts, options, salt)
        agreements.clear()
        spending = ask_one(engine, prompts, options, pages, salt)
        be_idle(engine)
        # What is served cold agrees with itself.
        row = {"spending": spending, "compared": bool(agreements), "agreement": agreements[0] if agreements else 1.0}
        rows.append(row)
        print(f"{number}: {rows[-1]}", flush=True)
    return verdict(rows, options) | {"comparisons": counted, "rows": rows}


def serve_donors(engine: Engine, prompts: Prompts, options: argparse.Namespace, salt: str) -> list[list[int]]:
    """Passages as they were written, each in a prompt of its own."""
    length = (options.tokens - 64) // options.passages - 16
    pages = [prompts.page(length) for _ in range(options.passages)]
    serve(engine, [prompts.page(48) + page + prompts.page(16) for page in pages], options, salt, output=1)
    engine.settle()
    return pages


def ask_one(engine: Engine, prompts: Prompts, options: argparse.Namespace, pages: list[list[int]], salt: str) -> float:
    """One request over all of them. What its kind of plan spends; 0: it is declined."""
    pages.reverse()
    recipient = [token for page in pages for token in prompts.page(16) + page] + prompts.page(64)
    kind = "few_places" if options.passages <= 4 else "many_places"
    spending = float(engine.side.guard._spendings()[kind])
    serve(engine, [recipient], options, salt)
    return spending


def break_the_correction() -> None:
    """From now on it does the opposite."""
    make = long_claims.corrected

    def turned_round(*order: Any) -> Any:
        made = make(*order)
        if made is not None:
            right = made.shift
            made.shift = replace(right, strength=-right.strength, value_strength=-right.of_values, learned=False)
        return made

    MeanShift.__post_init__ = lambda self: None  # It refuses such.
    long_claims.corrected = orders.corrected = turned_round


def verdict(rows: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    right, after = rows[: options.right], rows[options.right :]
    changed = [number for number, row in enumerate(after) if row["spending"] != after[0]["spending"]]
    last = after[-max(1, len(after) // 4) :]
    return {
        "target": options.target,
        "agreement_right": mean_agreement(right),
        "agreement_broken": mean_agreement(after[: changed[0]] if changed else after),
        "noticed_after": changed[0] if changed else None,
        "agreement_at_the_end": mean_agreement(last),
        "spending_at_the_end": last[-1]["spending"],
    }


def mean_agreement(rows: list[dict[str, Any]]) -> float:
    return statistics.mean(row["agreement"] for row in rows)


if __name__ == "__main__":
    main()
