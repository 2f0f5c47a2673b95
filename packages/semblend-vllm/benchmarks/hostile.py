"""Do other clients of vLLM wait longer because hostile ones make SemBlend work? Stock and SemBlend, in turns.

python benchmarks/hostile.py MODEL --cpu --context 8192 --dtype float32 --real-weights
... --hostile-tokens 8160      480 spans in each prompt that has many
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semblend_core.testing.benchmarks import Prompts, deliver, hostile, options_of

ANSWER = "hostile arm: "


class Arm:
    """An engine in a process of its own."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        stock = ["--stock"] if name == "stock" else []
        environment = os.environ | {"SEMBLEND_MIN_SPAN_TOKENS": str(hostile.SHORTEST_SPAN)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments, *stock, "--arm", name],
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment},
        )
        self.started = self._answer()

    def __call__(self, asked: Sequence[hostile.Asked]) -> list[float]:
        assert self._process.stdin is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return [float(value) for value in self._answer()["first_token_ms"]]

    def end(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        print("end", file=self._process.stdin, flush=True)
        said = self._answer()
        self._process.wait()
        return said

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                said: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                return said
        raise RuntimeError("an arm ended before it answered")


def serve(options: argparse.Namespace) -> None:
    """The life of an arm."""
    from _engine_under_test import Engine

    engine = Engine(options)
    tell(memory_mib=memory_mib())
    for line in sys.stdin:
        if line.strip() == "end":
            break
        prompts, salts = zip(*json.loads(line), strict=True)
        answers = engine.ask(prompts, salt=salts)
        tell(first_token_ms=[answer.first_token_ms for answer in answers])
        engine.settle()
    stats = None if engine.side is None else engine.side.provider.stats()
    counted = {} if stats is None else {"donors": stats.donors, "donor_bytes": stats.donor_bytes}
    counted |= {} if stats is None else {"confirmed_tokens": stats.confirmed_tokens, "declines": stats.declines}
    tell(memory_mib=memory_mib(), engine=engine.name, **counted)


def tell(**said: Any) -> None:
    print(ANSWER + json.dumps(said, default=str), flush=True)


def memory_mib() -> float:
    """The most that this process held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def add_arm_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arm", help="what the script starts itself with")


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from _engine_under_test import add_engine_options

    options = options_of(__doc__, add_engine_options, hostile.add_options, add_arm_option)
    if options.arm:
        serve(options)
        return
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    arms = {name: Arm(name, sys.argv[1:]) for name in ("stock", "semblend")}
    result = hostile.run(arms, prompts, options)
    result["arms"] = {name: {"at_start": arm.started, "at_end": arm.end()} for name, arm in arms.items()}
    for said in hostile.verdicts(result["runs"], "semblend", "stock"):
        print(said)
    deliver(result, options)


if __name__ == "__main__":
    main()
