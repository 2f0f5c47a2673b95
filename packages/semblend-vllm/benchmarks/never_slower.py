"""Is any request to vLLM slower because SemBlend is there? Lengths, shapes and requests in flight, in pairs.

VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/never_slower.py MODEL --graphs --tier balanced --out FOLDER
... --real-weights --text ../../docs              with real weights and text
... --cpu --sizes 512 --pairs 3 --context 2048    tries it out
"""

from __future__ import annotations

import argparse
import json

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import Prompts, add_prompt_options, never_slower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_engine_options(parser)
    add_prompt_options(parser)
    never_slower.add_options(parser)
    options = parser.parse_args()
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    result = never_slower.run(Engine(options), prompts, options)
    result["options"] = {name: str(value) for name, value in vars(options).items()}
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    print(json.dumps({"engine": result["engine"], "cells": len(result["cells"]), "failing": result["failing"]}))


if __name__ == "__main__":
    main()
