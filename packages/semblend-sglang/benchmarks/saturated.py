"""SGLang's admission with every place taken: how much reuse is left, and who waits. No model.

    python benchmarks/saturated.py
    python benchmarks/saturated.py --requests 120 --output-tokens 30

Tree, pools, allocator and admission are SGLang's own, through the tests' rig. Waiting is counted in rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

HELPERS = Path(__file__).parents[1] / "tests" / "engine"
sys.path[:0] = [str(HELPERS / "helpers"), *([str(HELPERS / "stand_ins")] if os.environ.get("SGLANG_USE_CPU_ENGINE") else [])]

LEAST_REUSE, MOST_WAIT = 0.9, 1.05
"""Of an idle engine's reuse; of the waiting with reuse off."""


def configure() -> None:
    """SGLang's parts read their configuration from the process."""
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    from semblend_core.testing import shallow_model_folder

    options = {"device": "cpu", "attention_backend": "torch_native", "dtype": "float32"}
    publish(ServerArgs(model_path=str(shallow_model_folder()), **options), role="scheduler")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=64)
    parser.add_argument("--alive", type=int, default=128)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--output-tokens", type=int, default=100, help="at least; at most twice as many")
    parser.add_argument("--json", type=Path, help="write the results here too")
    options = parser.parse_args()
    configure()
    from saturation import Traffic, reused_beside, serve

    full = Traffic(options.places, options.alive, options.requests, options.output_tokens)
    arms = {"idle": replace(full, alive=1, output_tokens=1), "full": full, "off": replace(full, wish="off")}
    served = {name: serve(traffic) for name, traffic in arms.items()}
    for name, outcome in served.items():
        waits = ", ".join(f"{kind} {outcome.mean_wait(kind):.1f}" for kind in outcome.waits)
        print(
            f"{name:5} {outcome.reused_requests} of {outcome.reusable_requests} reused, {outcome.reused_tokens} tokens; "
            f"mean wait in rounds: {waits}; {outcome.declines}",
            flush=True,
        )
    share = served["full"].reused_tokens / served["idle"].reused_tokens
    waits = {kind: served["full"].mean_wait(kind) / served["off"].mean_wait(kind) for kind in served["full"].waits}
    beside = {decoding: reused_beside(decoding) for decoding in (0, 6, 10, 12)}
    held = {
        f"{share:.3f} of the reuse of an idle engine": share >= LEAST_REUSE,
        **{f"{kind} wait {ratio:.3f} of what they wait with reuse off": ratio <= MOST_WAIT for kind, ratio in waits.items()},
        f"tokens reused beside so many that decode: {beside}": len(set(beside.values())) == 1,
    }
    for what, holds in held.items():
        print(f"{'holds' if holds else 'FAILS'} {what}", flush=True)
    result: dict[str, Any] = {"reuse_share": share, "waits": waits, "beside": beside, "held": all(held.values())}
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
