"""Is reuse on in vLLM with these weights? What the self-test finds, and what the second request about a text reuses.

python benchmarks/self_test.py MODEL --real-weights --text ../../docs --dtype bfloat16
... --cpu --context 2048    on a CPU
"""

from __future__ import annotations

import argparse
import json
import os

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import Prompts, add_prompt_options, proving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_engine_options(parser)
    add_prompt_options(parser)
    proving.add_options(parser)
    options = parser.parse_args()
    os.environ.setdefault("SEMBLEND_COST_GATE", "0")  # After one request nothing is known of costs.
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    result = {"model": options.model.name, "dtype": options.dtype, **proving.run(Engine(options), prompts, options)}
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
