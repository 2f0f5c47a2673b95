"""Requests per second of a real SGLang under steady load: stock, and with SemBlend.

Run it once per arm on an idle machine; each arm is a process of its own.

    python benchmarks/throughput.py CONFIG_DIR --stock --requests-in-flight 8
    python benchmarks/throughput.py CONFIG_DIR --requests-in-flight 8
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
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0], help="how much of the traffic is reusable")
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-capture", action="store_true", help="look up and load, but remember no prompt")
    options = parser.parse_args()
    engine, prompts = Engine(options), Prompts.for_model(options.model)
    serve(engine, [prompts.fresh(options.tokens) for _ in range(8)], options)
    results: dict[str, Any] = {"stock": options.stock, "capture": not options.no_capture}
    for share in options.shares:
        rates = [one_round(engine, prompts, options, share) for _ in range(options.rounds)]
        results[f"requests_per_s_at_{share:g}_reusable"] = round(statistics.median(rates), 3)
        results[f"all_at_{share:g}"] = [round(rate, 3) for rate in rates]
    results |= {"options": {name: str(value) for name, value in vars(options).items()}, "runs_with": engine.runs_with()}
    print(json.dumps(results), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results) + "\n")
    engine.close()


def one_round(engine: Engine, prompts: Prompts, options: argparse.Namespace, share: float) -> float:
    """Requests per second; of the prompts a share holds a document that was served before, behind a new instruction."""
    asked = []
    for n in range(options.requests):
        if n < share * options.requests:
            material = prompts.new_instruction(options.tokens)
            serve(engine, material.donors, options, output_tokens=1)
            asked.append(material.recipient())
        else:
            asked.append(prompts.fresh(options.tokens))
    random.Random(1).shuffle(asked)
    started = time.perf_counter()
    serve(engine, asked, options)
    return len(asked) / (time.perf_counter() - started)


def serve(
    engine: Engine, prompts: list[list[int]], options: argparse.Namespace, output_tokens: int | None = None
) -> None:
    engine.serve(prompts, output_tokens or options.output_tokens, capture=not options.no_capture)


if __name__ == "__main__":
    main()
