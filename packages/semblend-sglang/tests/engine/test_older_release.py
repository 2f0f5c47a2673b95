"""SGLang 0.5.17 has another cache and other calls: the engine tests hold there too.

It lies beside the environment's own release, whose packages it shares where they fit, and is found first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OLDER = Path(sys.prefix) / "older"
HERE = Path(__file__).parent


def test_the_engine_tests_pass_on_0_5_17() -> None:
    assert (OLDER / "sglang-0.5.17.dist-info").is_dir(), "the environment's `prepare` script installs it"
    search = os.pathsep.join([str(OLDER), os.environ["PYTHONPATH"]])
    root = HERE.parents[3]
    command = [sys.executable, "-m", "pytest", "-c", root / "pyproject.toml", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, HERE / "test_engine.py"],
        env=os.environ | {"PYTHONPATH": search},
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stdout[-8000:]
    assert "run in SGLang 0.5.17" in ran.stdout
