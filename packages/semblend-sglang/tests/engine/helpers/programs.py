"""Programs whose engines have processes of their own, and which write what they found as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST_S = 1200
"""No limit of speed: what has not ended by then hangs."""
SEVERAL_RANKS = {
    # By itself SGLang gives each rank a memory node, and most machines have one.
    "SGLANG_CPU_OMP_THREADS_BIND": "0|1" if (os.cpu_count() or 1) > 1 else "0|0",
    # Others on the machine take memory and give it back while the ranks start.
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
}
"""What programs with two ranks need besides."""


def run_program(name: str, model: Path, folder: Path, **variables: str) -> dict[str, Any]:
    """What this program of these helpers found with ``model``. It may write to ``folder``."""
    program, found, log = Path(__file__).with_name(f"{name}.py"), folder / "found.json", folder / "log"
    # SGLang compiles a little at each start, which takes longer than all that is asked.
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1", **variables}
    with log.open("wb") as output:
        ended = subprocess.run(
            [sys.executable, str(program), str(found), str(model), str(folder)],
            env=environment,
            stdout=output,
            stderr=output,
            timeout=LONGEST_S,
        )
    assert ended.returncode == 0, log.read_text()[-6000:]
    return dict(json.loads(found.read_text()))


def run(main: Callable[[str, Path], dict[str, Any]]) -> None:
    """In the program: write what ``main`` finds, and end at once."""
    found = main(sys.argv[2], Path(sys.argv[3]))
    Path(sys.argv[1]).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # SGLang's own ending is not what is tested.
