"""A load that looks like production: mixed requests, up to 64 in flight, SGLang with SemBlend and without by turns.

python benchmarks/production.py MODEL --real-weights --text ../../docs \
    --tier balanced --graphs --memory 0.35 --json FILE
... --cpu --dtype float32 --context 2048 --longest 2000 --seconds 40 --in-flight 4 --warm-up 4    tries it out
"""

from __future__ import annotations

from _engine_under_test import add_engine_options
from _streaming_engine import StreamingSglang

from semblend_core.testing.benchmarks import deliver, options_of, production


def main() -> None:
    options = options_of(__doc__, add_engine_options, production.add_options, why_not=production.why_not)
    deliver(production.run(StreamingSglang, options), options)


if __name__ == "__main__":
    main()
