"""Engines with one rank or several, each in a process that is forked from one in which SGLang is imported already.

To import it takes longer than all that is asked, and each of an engine's processes would.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import on_a_rank
import psutil
from running_engine import RunningEngine

FORK = multiprocessing.get_context("fork")
LONGEST_S = 600
"""No limit of speed: what has not ended by then hangs."""


class RankedEngine(RunningEngine):
    def __init__(self, model_folder: Path, audit: Path, ranks: int, **options: Any) -> None:
        # A small pool, so that something is evicted.
        super().__init__(model_folder, audit, tp_size=ranks, max_total_tokens=6144, log_level="warning", **options)
        self.on_ranks("wait_for_disks")

    def on_ranks(self, call: str, **arguments: Any) -> list[Any]:
        """What this function of ``on_a_rank`` returns at each rank."""
        folder = Path(tempfile.mkdtemp())
        self.engine.collective_rpc("semblend_test", call=call, folder=str(folder), **arguments)
        found = [json.loads(file.read_text()) for file in sorted(folder.iterdir())]
        shutil.rmtree(folder)
        return found

    def counted(self) -> dict[str, Any]:
        declines = self.declines()
        return {"confirmed": self.confirmed(), "declines": {reason: declines.count(reason) for reason in declines}}


def import_sglang() -> None:
    import sglang.srt.entrypoints.engine
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry

    assert sglang.srt.models.registry.ModelRegistry
    sglang.srt.managers.scheduler.Scheduler.semblend_test = on_a_rank.called
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[assignment]


def in_a_fork(session: Callable[..., dict[str, Any]], *arguments: Any, **environment: str) -> dict[str, Any]:
    """What ``session`` returns, in a process of its own."""
    receives, sends = FORK.Pipe(duplex=False)

    def run() -> None:
        os.environ.update(environment)
        try:
            sends.send(session(*arguments))
        except BaseException:  # To end, it would wait for the engine's processes.
            traceback.print_exc()
            for process in psutil.Process().children(recursive=True):
                process.kill()
            os._exit(1)

    process = FORK.Process(target=run)
    process.start()
    sends.close()
    try:
        assert receives.poll(LONGEST_S), "it hangs"
        return dict(receives.recv())
    finally:
        process.join(LONGEST_S)
