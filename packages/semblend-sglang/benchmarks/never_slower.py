"""Is any request to SGLang slower because SemBlend is there? Lengths, shapes and requests in flight, in pairs.

python benchmarks/never_slower.py MODEL --tier balanced --out FOLDER
... --real-weights --text ../../docs              with real weights and text
... --cpu --sizes 512 --pairs 3 --context 2048    tries it out
"""

from __future__ import annotations

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import Prompts, deliver, never_slower, options_of


def main() -> None:
    options = options_of(__doc__, add_engine_options, never_slower.add_options, why_not=never_slower.why_not)
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    engine = Engine(options, inspected=True)
    result = never_slower.run(engine, prompts, options) | {"runs_with": engine.runs_with()}
    shown = {"engine": result["engine"], "cells": len(result["cells"]), "failing": result["failing"]}
    deliver(result, options, shown)
    engine.close()


if __name__ == "__main__":
    main()
