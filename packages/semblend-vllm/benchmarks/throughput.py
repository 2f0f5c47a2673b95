"""Requests per second of a real vLLM under steady load: stock; with SemBlend; and that in turns without capture.

Run it once per arm on an idle machine; stock is a process of its own, since vLLM cannot be taken out of one.

    VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/throughput.py CONFIG_DIR --stock
    VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/throughput.py CONFIG_DIR
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import Prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_engine_options(parser)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    engine, prompts = Engine(options), Prompts.for_model(options.model)
    serve(engine, [prompts.fresh(options.tokens) for _ in range(8)], options, "warm-up")
    rates: dict[str, list[float]] = {}
    for number in range(options.rounds):
        for arm, share, capture in arms(options.stock, number):
            rate = one_round(engine, prompts, options, share, capture, f"{arm}-{number}")
            rates.setdefault(arm, []).append(rate)
            print(f"round {number + 1} of {options.rounds}, {arm}: {rate:.2f} requests/s", flush=True)
    results: dict[str, Any] = {"stock": options.stock}
    for arm, values in rates.items():
        results[arm] = {"requests_per_s": round(statistics.median(values), 3), "all": [round(v, 3) for v in values]}
    print(json.dumps(results), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results) + "\n")


def arms(stock: bool, number: int) -> list[tuple[str, float, bool]]:
    """Name, share of prompts that are reusable, whether prompts are captured."""
    half = ("half_reusable", 0.5, True)
    plain = [("nothing_reusable", 0.0, True)]
    if not stock:
        plain.append(("nothing_reusable_not_captured", 0.0, False))
    return [*(reversed(plain) if number % 2 else plain), half]  # In turns: the machine may warm up, or be disturbed.


def one_round(
    engine: Engine, prompts: Prompts, options: argparse.Namespace, share: float, capture: bool, salt: str
) -> float:
    """Requests per second; of the prompts a share holds a document that was served before, behind a new instruction."""
    asked = []
    for n in range(options.requests):
        if n < share * options.requests:
            material = prompts.new_instruction(options.tokens)
            serve(engine, material.donors, options, salt, output_tokens=1)
            asked.append(material.recipient())
        else:
            asked.append(prompts.fresh(options.tokens))
    engine.settle()
    random.Random(1).shuffle(asked)
    started = time.perf_counter()
    serve(engine, asked, options, salt, capture=capture)
    return len(asked) / (time.perf_counter() - started)


def serve(
    engine: Engine,
    prompts: list[list[int]],
    options: argparse.Namespace,
    salt: str,
    *,
    capture: bool = True,
    output_tokens: int | None = None,
) -> None:
    wish = {"capture": capture}
    engine.serve(prompts, salt, output_tokens or options.output_tokens, options.in_flight, wish)


if __name__ == "__main__":
    main()
