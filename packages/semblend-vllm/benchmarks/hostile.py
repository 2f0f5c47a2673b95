"""Do other clients of vLLM wait longer because hostile ones make SemBlend work? Stock and SemBlend, in turns.

python benchmarks/hostile.py MODEL --cpu --context 8192 --dtype float32 --real-weights
... --hostile-tokens 8160      480 spans in each prompt that has many
"""

from __future__ import annotations

import argparse
import os
import resource
from collections.abc import Sequence
from functools import partial
from typing import Any

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import ARMS, Arms, Prompts, deliver, hostile, options_of


def engine_of(options: argparse.Namespace) -> Engine:
    os.environ["SEMBLEND_MIN_SPAN_TOKENS"] = str(hostile.SHORTEST_SPAN)
    return Engine(options)


class Answers:
    """To requests their times to first token, and to None what was counted."""

    def __init__(self, engine: Engine, options: argparse.Namespace) -> None:
        self._engine = engine

    def __call__(self, asked: Sequence[hostile.Asked] | None) -> list[float] | dict[str, Any]:
        if asked is None:
            return self._counted()
        prompts, salts = zip(*asked, strict=True)
        answers = self._engine.ask(prompts, salt=salts)
        self._engine.settle()
        return [answer.first_token_ms for answer in answers]

    def _counted(self) -> dict[str, Any]:
        most = {"memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        if self._engine.side is None:
            return most
        stats = self._engine.side.provider.stats()
        counted = {"donors": stats.donors, "donor_bytes": stats.donor_bytes}
        return most | counted | {"confirmed_tokens": stats.confirmed_tokens, "declines": dict(stats.declines)}


def main() -> None:
    options = options_of(__doc__, add_engine_options, hostile.add_options, why_not=hostile.why_not)
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    with Arms(engine_of, Answers, options) as arms:
        at_start = {arm: arms.run(arm, None) for arm in ARMS}
        result = hostile.run({arm: partial(arms.run, arm) for arm in ARMS}, prompts, options)
        result["engine"] = arms.engine
        result["arms"] = {arm: {"at_start": at_start[arm], "at_end": arms.run(arm, None)} for arm in ARMS}
    for said in hostile.verdicts(result["runs"], "semblend", "stock"):
        print(said)
    deliver(result, options)


if __name__ == "__main__":
    main()
