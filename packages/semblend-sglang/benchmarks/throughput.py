"""Requests per second of SGLang under steady load, and how long single ones wait: with SemBlend and without by turns.

python benchmarks/throughput.py CONFIG_DIR --graphs --memory 0.35 --json FILE
... --cpu --dtype float32 --context 2048 --tokens 1500 --requests 6 --in-flight 2    tries it out
"""

from __future__ import annotations

from _engine_under_test import add_engine_options
from _streaming_engine import StreamingSglang

from semblend_core.testing.benchmarks import deliver, options_of, throughput


def main() -> None:
    options = options_of(__doc__, add_engine_options, throughput.add_options, why_not=throughput.why_not)
    deliver(throughput.run(StreamingSglang, options), options)


if __name__ == "__main__":
    main()
