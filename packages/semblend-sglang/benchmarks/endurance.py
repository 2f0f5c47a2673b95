"""10,000 mixed requests in one SGLang: memory, slots, pins, open files and SemBlend's own books do not grow.

python benchmarks/endurance.py MODEL --real-weights --text ../../docs --cpu --dtype float32 --context 2048 \
    --tier balanced --disk FOLDER --stock --json STOCK
... --disk FOLDER --beside STOCK --json FILE
"""

from __future__ import annotations

import os

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import Prompts, deliver, endurance, options_of


def main() -> None:
    options = options_of(__doc__, add_engine_options, endurance.add_options, why_not=endurance.why_not)
    endurance.set_up(options)
    os.environ["SEMBLEND_SGLANG_KEEP_DONORS"] = "1"
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    result = endurance.run(Engine(options, inspected=not options.stock), prompts, options)
    deliver(result, options, shown={"outcomes": result["outcomes"], "fails": result["fails"]})


if __name__ == "__main__":
    main()
