"""Tests in an engine's older release, which lies in a folder of its own beside the environment's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def output_of_tests(tests: Path, root: Path, release: Path) -> str:
    """What pytest prints for ``tests`` where ``release`` is found first; AssertionError where they do not pass."""
    search = os.pathsep.join(filter(None, [str(release), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", root / "pyproject.toml", "-p", "no:cacheprovider", tests],
        env=os.environ | {"PYTHONPATH": search},
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stdout[-8000:]
    return ran.stdout
