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
from pathlib import Path

from semblend_core.testing.benchmarks import checked, saturation

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engine" / "overlapping" / "helpers"))
# Nothing is computed here, so times say nothing.
os.environ.setdefault("SEMBLEND_LOOKUP_BUDGET_MS", "10000")
os.environ.setdefault("SEMBLEND_COST_GATE", "0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    saturation.add_options(parser)
    parser.add_argument("--json", type=checked.file_to_write, help="write the results here too")
    options = parser.parse_args()
    from full_batches import STEP, calls_until_short_ones_end, serve

    result = saturation.run(serve, options)
    ends = {str(wish): calls_until_short_ones_end(wish) for wish in (None, "off", "on")}
    saturation.hold(
        f"short requests behind many rows end after {ends['on']} calls, {ends['off']} with reuse off, "
        f"{ends['None']} without that request",
        ends["on"] <= ends["off"] + STEP,
    )
    result["short_ones_end"] = ends
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
