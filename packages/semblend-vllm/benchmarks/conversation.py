"""Ten turns over a document that somebody else brought to vLLM: with reuse and without, side by side.

VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/conversation.py MODEL --graphs
... --real-weights --text ../../docs --conversations 0 --equal 0 --fidelity 10    answers against cold ones
... --cpu --counts-only --document 700 --context 4096 --conversations 1           tries it out
"""

from __future__ import annotations

import argparse
import json

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import Prompts, add_prompt_options, conversation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_engine_options(parser)
    add_prompt_options(parser)
    conversation.add_options(parser)
    options = parser.parse_args()
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    result = conversation.run(Engine(options), prompts, options)
    result["options"] = {name: str(value) for name, value in vars(options).items()}
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
