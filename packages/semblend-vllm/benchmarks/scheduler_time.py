"""What SemBlend takes of the scheduling thread before a first token: by length, shape and requests at once. No model.

    python benchmarks/scheduler_time.py
    python benchmarks/scheduler_time.py --sizes 6144x4 --rounds 40 --events --row-us 800

Queues, block pool, prefix cache and SemBlend's half are the real ones. The worker is the tests'; a step takes as long
as the options say, which the cost gate learns. The thread's CPU time is counted, without the worker's: so figures hold
on a busy machine, but for its caches. Each round serves every shape with reuse, and once the length with reuse off.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semblend_core.testing.benchmarks import Prompts, checked, never_slower

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engine" / "overlapping" / "helpers"))
OFF = "off"
VOCABULARY = 40_000
MOST_TOKENS = 32_768
"""Of a step, and of a prompt."""
PER_DONOR, WARM_UP = 11, 2
"""Rounds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [(2048, 1, None), (6144, 1, None), (6144, 4, None)]
    meaning = "of a prompt; N: how many such prompts come at once; PAIRS: rounds, other than --rounds"
    parser.add_argument(
        "--sizes", type=never_slower.size, nargs="+", default=sizes, metavar="TOKENS[xN][:PAIRS]", help=meaning
    )
    parser.add_argument("--shapes", nargs="+", default=list(never_slower.SHAPES), choices=never_slower.SHAPES)
    parser.add_argument("--rounds", type=checked.positive, default=30)
    parser.add_argument("--tier", default="balanced", choices=("fast", "balanced", "strict"))
    parser.add_argument("--blocks", type=checked.positive, default=30_000, help="of 16 tokens, in vLLM's pool")
    parser.add_argument("--events", action="store_true", help="with KV events")
    parser.add_argument("--step-us", type=checked.positive, default=8000, help="what any step takes")
    parser.add_argument("--token-ns", type=checked.positive, default=5400, help="what each of its tokens adds")
    parser.add_argument("--row-us", type=checked.not_negative, default=300, help="what each of its rows adds")
    parser.add_argument("--load-us", type=checked.not_negative, default=8000, help="what a load and its correction add")
    parser.add_argument("--json", type=checked.file_to_write, help="write the results here too")
    options = parser.parse_args()
    if max(tokens for tokens, *_ in options.sizes) > MOST_TOKENS:
        parser.error(f"--sizes: at most {MOST_TOKENS} tokens")
    os.environ.update(SEMBLEND_QUALITY_TIER=options.tier, SEMBLEND_COST_DIR="none")
    results = [each for tokens, at_once, rounds in options.sizes for each in measure(tokens, at_once, rounds, options)]
    if options.json:
        options.json.write_text(json.dumps(results) + "\n")
    print(json.dumps({"cells": len(results)}))


def measure(tokens: int, at_once: int, rounds: int | None, options: argparse.Namespace) -> list[dict[str, Any]]:
    engine, prompts = TimedEngine(options), Prompts(VOCABULARY)
    taken: dict[str, list[float]] = {arm: [] for arm in (OFF, *options.shapes)}
    ended: dict[str, Counter[str]] = {arm: Counter() for arm in taken}
    material = {}
    for number in range(WARM_UP + (rounds or options.rounds)):
        if number % PER_DONOR == 0:
            material = {shape: never_slower.SHAPES[shape](prompts, tokens) for shape in options.shapes}
            for each in material.values():
                for donor in each.donors:
                    engine.serve([donor], "on", "grid")
        arms = list(taken)
        for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
            asked = [material[options.shapes[0] if arm == OFF else arm].recipient() for _ in range(at_once)]
            before = engine.reused()
            took = engine.serve(asked, *((OFF, OFF) if arm == OFF else ("on", "grid")))
            if number >= WARM_UP:
                taken[arm].append(took)
                ended[arm].update({"reused": engine.reused() - before, "asked": at_once})
    engine.close()
    results = []
    for arm, each in taken.items():
        beyond = statistics.median(each) - statistics.median(taken[OFF])
        found = {"tokens": tokens, "at_once": at_once, "arm": arm, "median_ms": round(statistics.median(each), 3)}
        results.append(found | {"beyond_off_ms": round(beyond, 3), **ended[arm]})
        reused = "" if arm == OFF else f"   {ended[arm]['reused']} of {ended[arm]['asked']} reused"
        cell = f"{tokens:6d} x{at_once}  {arm:13}"
        print(f"{cell}  {found['median_ms']:7.2f} ms   beyond off {beyond:6.2f}{reused}", flush=True)
    return results


class TimedEngine:
    def __init__(self, options: argparse.Namespace) -> None:
        from overlapping_engine import Overlapping

        def change(config: Any) -> None:
            config.model_config.max_model_len = config.scheduler_config.max_model_len = MOST_TOKENS + 64
            config.kv_events_config.enable_kv_cache_events = options.events

        self._options = options
        self._engine = Overlapping(tokens_of_a_step=MOST_TOKENS, places=64, blocks=options.blocks, change=change)
        self._run, self._engine.worker.run = self._engine.worker.run, self._take_a_step
        self._update, self._engine.update = self._engine.update, self._wait_and_update
        self._ends: list[float] = []
        """Of the steps in flight, by the clock."""
        self._idle_from = 0.0
        self._of_worker = 0.0

    def serve(self, asked: Sequence[list[int]], wish: str, salt: str) -> float:
        """Milliseconds of CPU until a first token, on average."""
        began = self._spent()
        requests = [self._engine.add(prompt, 4, wish, salt) for prompt in asked]
        first: dict[str, float] = {}
        while not all(request.is_finished() for request in requests):
            self._engine.step()
            for request in requests:
                if self._engine.answers[request.request_id]:
                    first.setdefault(request.request_id, self._spent() - began)
        self._engine.finish()
        return 1e3 * statistics.fmean(first.values())

    def reused(self) -> int:
        ended = self._engine.side.provider.stats().outcomes
        return sum(count for kind, count in ended.items() if str(kind) == "materialized")

    def close(self) -> None:
        self._engine.scheduler.shutdown()

    def _spent(self) -> float:
        return time.thread_time() - self._of_worker

    def _take_a_step(self, output: Any) -> Any:
        began, work = time.thread_time(), output.kv_connector_metadata
        rows = sum("#" in request_id for request_id in output.num_scheduled_tokens)
        takes = self._options.step_us + self._options.row_us * rows + self._options.load_us * bool(work.loads)
        takes += self._options.token_ns / 1e3 * output.total_num_scheduled_tokens
        self._idle_from = max(time.perf_counter(), self._idle_from) + takes / 1e6
        self._ends.append(self._idle_from)
        result = self._run(output)
        self._of_worker += time.thread_time() - began
        return result

    def _wait_and_update(self) -> None:
        time.sleep(max(0.0, self._ends.pop(0) - time.perf_counter()))
        self._update()


if __name__ == "__main__":
    main()
