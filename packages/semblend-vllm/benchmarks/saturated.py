"""vLLM's scheduler with every place taken: how much reuse is left, who waits, and whom many rows hold up. No model.

    python benchmarks/saturated.py
    python benchmarks/saturated.py --requests 120 --output-tokens 30

Queues, block pool, prefix cache and SemBlend's half are the real ones. The worker is the tests': it writes down which
token lies where. Waiting is counted in engine calls.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engine" / "overlapping" / "helpers"))
os.environ.setdefault("SEMBLEND_LOOKUP_BUDGET_MS", "10000")  # Times are not what is measured.

LEAST_REUSE, MOST_WAIT = 0.9, 1.05
"""Of an idle engine's reuse; of the waiting with reuse off."""


def main() -> None:
    from saturation import STEP, Traffic, calls_until_short_ones_end, serve

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=64)
    parser.add_argument("--alive", type=int, default=128)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--output-tokens", type=int, default=100, help="at least; at most twice as many")
    parser.add_argument("--json", type=Path, help="write the results here too")
    options = parser.parse_args()
    full = Traffic(options.places, options.alive, options.requests, options.output_tokens)
    arms = {"idle": replace(full, alive=1, output_tokens=1), "full": full, "off": replace(full, wish="off")}
    served = {name: serve(traffic) for name, traffic in arms.items()}
    for name, outcome in served.items():
        waits = ", ".join(f"{kind} {outcome.mean_wait(kind):.1f}" for kind in outcome.waits)
        print(
            f"{name:5} {outcome.reused_requests} of {outcome.reusable_requests} reused, {outcome.reused_tokens} tokens; "
            f"mean wait in calls: {waits}; {outcome.declines}",
            flush=True,
        )
    share = served["full"].reused_tokens / served["idle"].reused_tokens
    waits = {kind: served["full"].mean_wait(kind) / served["off"].mean_wait(kind) for kind in served["full"].waits}
    ends = {str(wish): calls_until_short_ones_end(wish) for wish in (None, "off", "on")}
    held = {
        f"{share:.3f} of the reuse of an idle engine": share >= LEAST_REUSE,
        **{f"{kind} wait {ratio:.3f} of what they wait with reuse off": ratio <= MOST_WAIT for kind, ratio in waits.items()},
        f"short requests behind many rows end after {ends['on']} calls, with reuse off {ends['off']}, "
        f"without that request {ends['None']}": ends["on"] <= ends["off"] + STEP,
    }
    for what, holds in held.items():
        print(f"{'holds' if holds else 'FAILS'} {what}", flush=True)
    result: dict[str, Any] = {"reuse_share": share, "waits": waits, "short_ones_end": ends, "held": all(held.values())}
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
