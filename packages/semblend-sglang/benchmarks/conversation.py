"""Ten turns over a document that somebody else brought to SGLang: with reuse and without, side by side.

python benchmarks/conversation.py MODEL
... --real-weights --text ../../docs --conversations 0 --equal 0 --fidelity 10    answers against cold ones
... --cpu --counts-only --document 700 --context 4096 --conversations 1           tries it out
"""

from __future__ import annotations

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import Prompts, conversation, deliver, options_of


def main() -> None:
    options = options_of(__doc__, add_engine_options, conversation.add_options, why_not=conversation.why_not)
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    engine = Engine(options, inspected=True)
    result = conversation.run(engine, prompts, options) | {"runs_with": engine.runs_with()}
    deliver(result, options)
    engine.close()


if __name__ == "__main__":
    main()
