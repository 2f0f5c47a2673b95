"""Requests per second of a real vLLM under steady load: stock, with SemBlend, with and without capture.

Run it once per arm on an idle machine; each arm is a process of its own, since vLLM cannot be taken out of one.

    VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/throughput.py CONFIG_DIR --stock
    VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/throughput.py CONFIG_DIR
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from _engine_under_test import Engine, Prompts, add_engine_options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_engine_options(parser)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-capture", action="store_true", help="look up and load, but keep no prompt")
    options = parser.parse_args()
    engine, prompts = Engine(options), Prompts()
    serve(engine, [prompts.fresh(options.tokens) for _ in range(8)], options, "warm-up")
    results: dict[str, Any] = {"stock": options.stock, "capture": not options.no_capture}
    for share in (0.0, 0.5):
        rates = [one_round(engine, prompts, options, share, number) for number in range(options.rounds)]
        results[f"requests_per_s_at_{share:g}_reusable"] = round(statistics.median(rates), 3)
        results[f"all_at_{share:g}"] = [round(rate, 3) for rate in rates]
    print(json.dumps(results), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results) + "\n")


def one_round(engine: Engine, prompts: Prompts, options: argparse.Namespace, share: float, number: int) -> float:
    """Requests per second; of the prompts a share holds a document that was served before, behind a new instruction."""
    salt = f"{share}-{number}"
    asked = []
    for n in range(options.requests):
        if n < share * options.requests:
            donors, recipient = prompts.new_instruction(options.tokens)
            serve(engine, donors, options, salt, output_tokens=1)
            asked.append(recipient)
        else:
            asked.append(prompts.fresh(options.tokens))
    engine.settle()
    order = [asked[i] for i in sorted(range(len(asked)), key=lambda i: i * 7919 % len(asked))]
    started = time.perf_counter()
    serve(engine, order, options, salt)
    return len(order) / (time.perf_counter() - started)


def serve(
    engine: Engine, prompts: list[list[int]], options: argparse.Namespace, salt: str, output_tokens: int | None = None
) -> None:
    wish = {"capture": not options.no_capture}
    engine.serve(prompts, salt, output_tokens or options.output_tokens, options.in_flight, wish)


if __name__ == "__main__":
    main()
