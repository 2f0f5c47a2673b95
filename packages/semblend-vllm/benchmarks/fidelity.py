"""How far do vLLM's answers with reuse stray from cold ones? KL and top-1 by forced text, passages from many places.

VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/fidelity.py MODEL --graphs --real-weights --text ../../docs \
    --tier balanced --json probed.json
... --kv-cache-dtype fp8_e4m3 --again                                            beside what fp8 strays by itself
SEMBLEND_PROBE=never python benchmarks/fidelity.py ...                           rows without a probe
... --cpu --dtype float32 --size 1300 --passages 4 --cases 2 --context 2048      tries it out
"""

from __future__ import annotations

import os

from _engine_under_test import Engine, add_engine_options

from semblend_core.testing.benchmarks import Prompts, deliver, fidelity, options_of


def main() -> None:
    options = options_of(__doc__, add_engine_options, fidelity.add_options, why_not=fidelity.why_not)
    os.environ.setdefault("SEMBLEND_COST_GATE", "0")  # What is reused is looked at, whether it pays or not.
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    engine = Engine(options)
    deliver(fidelity.run(engine, prompts, options) | {"probes": engine.probes()}, options)


if __name__ == "__main__":
    main()
