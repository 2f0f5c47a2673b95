"""Programs whose engines have processes of their own: see ``semblend_core.testing.run_program``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semblend_core.testing import run_program as found_by
from semblend_core.testing import write_findings

SEVERAL_RANKS = {
    # By itself SGLang gives each rank a memory node, and most machines have one.
    "SGLANG_CPU_OMP_THREADS_BIND": "0|1" if (os.cpu_count() or 1) > 1 else "0|0",
    # Others on the machine take memory and give it back while the ranks start.
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
}
"""What programs with two ranks need besides."""
IMPORTED = (
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.registry",
)
"""What ``ranked_engine`` imports, which takes longer than what is asked: one process does it for all programs."""


def run_program(name: str, model: Path, folder: Path, **variables: str) -> dict[str, Any]:
    """What this program of these helpers found with ``model``. It may write to ``folder``."""
    # SGLang compiles a little at each start, which takes longer than all that is asked.
    once = {"TORCHDYNAMO_DISABLE": "1", **variables}
    program = Path(__file__).with_name(f"{name}.py")
    return found_by(program, folder, str(model), str(folder), imported=IMPORTED, **once)


def run(main: Callable[[str, Path], dict[str, Any]]) -> None:
    """In the program."""
    write_findings(lambda model, folder: main(model, Path(folder)))
