"""Is reuse on in vLLM with these weights? What the self-test finds, and what the second request about a text reuses.

python benchmarks/self_test.py MODEL --real-weights --text ../../docs --dtype bfloat16
... --cpu --context 2048    on a CPU
"""

from __future__ import annotations

import os

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import Prompts, deliver, options_of, proving


def main() -> None:
    options = options_of(__doc__, add_engine_options, proving.add_options, why_not=proving.why_not)
    os.environ.setdefault("SEMBLEND_COST_GATE", "0")  # After one request nothing is known of costs.
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    engine = Engine(options)
    types = {"dtype": options.dtype, "kv_cache_dtype": options.kv_cache_dtype}
    result = {"model": options.model.name, **types, **proving.run(engine, prompts, options)}
    deliver(result, options)


if __name__ == "__main__":
    main()
