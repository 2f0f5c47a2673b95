"""The program of ``test_store_faults.py``: an engine whose donors lie on disk, and what befalls the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine_process import check, counted, new_engine, told
from texts import donor, recipient

from semblend_core.testing import STORE_FAULTS, open_files, write_findings


def main(folder: str) -> dict[str, Any]:
    settings = {"store_host_bytes": "0", "store_disk_bytes": "1GiB", "store_disk_path": folder}
    engine = new_engine(settings=settings)
    for kind in ("Warm", "Up"):  # The self-test is passed, and all that is opened once is open.
        keep(engine, kind)
    engine.ask(recipient("Warm"))
    return {name: befallen(engine, name, Path(folder)) for name in STORE_FAULTS}


def keep(engine: Any, kind: str) -> None:
    engine.ask(donor(kind), tokens=1)
    engine.settle()
    engine.empty_own_cache()


def befallen(engine: Any, name: str, folder: Path) -> dict[str, Any]:
    """Two ask for what is kept, one at a time, and one brings something new, while it lasts. Then it is over."""
    kept, new, after = (f"{part} of {name.replace(' ', '-')}" for part in ("Kept", "New", "After"))
    keep(engine, kept)
    free, files = free_blocks(engine), open_files()
    cold = told(engine.ask(recipient(kept), salt="cold", reuse="off"))
    engine.empty_own_cache()
    before = counted(engine)
    as_usual = waits_of(engine).__dict__.pop("coming", None)  # They are bounded, for once.
    with STORE_FAULTS[name](folder):
        asked = told(engine.ask(recipient(kept), tokens=8))
        other = told(engine.ask(donor(new), tokens=8))
        if name != "disk hangs":
            engine.settle()  # Whether the new one can be kept is decided while it lasts.
    if as_usual is not None:
        waits_of(engine).coming = as_usual
    engine.settle()
    between = counted(engine)
    refused = {str(reason): count for reason, count in engine.worker._store.stats().declines.items()}
    keep(engine, after)
    again = told(engine.ask(recipient(after)))
    engine.settle()
    check(engine)
    engine.empty_own_cache()
    return {
        "cold": cold,
        "asked": asked,
        "other": other,
        "again": again,
        "before": before,
        "between": between,
        "after": counted(engine),
        "refused": refused,
        "free": [free, free_blocks(engine)],
        "files": [files, open_files()],
    }


def free_blocks(engine: Any) -> int:
    return int(engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def waits_of(engine: Any) -> Any:
    return engine.side.admission.fetch_orders._waits


if __name__ == "__main__":
    write_findings(main)
