"""The program of ``test_two_ranks.py``: the same with one rank and with two, faults at one of two, and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from archive import first
from programs import run
from ranked_engine import RankedEngine, import_sglang, in_a_fork
from scenes import FOUR, ONE, a_list, asked, conversation, crowd, fault

from semblend_core import tenant_of_salt
from semblend_core.control import asked_of_engines

FAULTS = {"lookup": 0, "in_place": 1, "sources": 1, "move": 1, "look": 1}
"""By rank."""


def main(model: str, folder: Path) -> dict[str, Any]:
    import_sglang()
    found = {"one": in_a_fork(session, model, folder, 1, "one", SEMBLEND_AUDIT_PATH=str(folder / "one"))}
    kept = {
        "SEMBLEND_SGLANG_KEEP_DONORS": "1",
        "SEMBLEND_STORE_HOST_BYTES": "0",
        "SEMBLEND_STORE_DISK_BYTES": "1GiB",
        "SEMBLEND_STORE_DISK_PATH": str(folder / "disk"),
        "SEMBLEND_CONTROL_DIR": str(folder / "c"),
    }
    found["two"] = in_a_fork(session, model, folder, 2, "two", SEMBLEND_AUDIT_PATH=str(folder / "two"))
    found["kept"] = in_a_fork(keeping, model, folder, SEMBLEND_AUDIT_PATH=str(folder / "kept"), **kept)
    _tear(folder / "disk", found["kept"]["files"]["torn"])
    found["restart"] = in_a_fork(restarted, model, folder, SEMBLEND_AUDIT_PATH=str(folder / "restart"), **kept)
    return found


def session(model: str, folder: Path, ranks: int, name: str) -> dict[str, Any]:
    engine = RankedEngine(Path(model), folder / name, ranks)
    found: dict[str, Any] = {"answers": {case: asked(engine, case) for case in (ONE, FOUR)}}
    found["ranks"] = engine.on_ranks("state", tenant=tenant_of_salt("tenant"))
    if ranks > 1:
        found["conversation"] = conversation(engine)
        found["crowd"] = crowd(engine)
        found["faults"] = {what: fault(engine, what, rank) for what, rank in FAULTS.items()}
        found["rows"] = fault(engine, "rows", 1)
        found["at_the_end"] = engine.on_ranks("state", tenant=tenant_of_salt("tenant"))
    engine.close()
    return found


def keeping(model: str, folder: Path) -> dict[str, Any]:
    """Donors on disk: each rank keeps its part, all or none; a purge reaches every rank."""
    engine = RankedEngine(Path(model), folder / "kept", 2)
    engine.ask(first(), salt="purged", tokens=1)
    tenant = tenant_of_salt("purged")
    found: dict[str, Any] = {"before_purge": engine.on_ranks("state", tenant=tenant)}
    found["purge"] = asked_of_engines(folder / "c", "purge", tenant)
    found["after_purge"] = engine.on_ranks("state", tenant=tenant)
    engine.on_ranks("break_at", rank=1, what="capture")
    engine.ask(first(), salt="capture", tokens=1)
    engine.on_ranks("mend")
    found["capture"] = engine.on_ranks("state", tenant=tenant_of_salt("capture"))
    found["files"] = {kind: _kept_files(engine, folder / "disk", kind) for kind in ("whole", "torn")}
    engine.close()
    return found


def restarted(model: str, folder: Path) -> dict[str, Any]:
    engine = RankedEngine(Path(model), folder / "restart", 2)
    for kind in ("first", "second"):  # The self-test is passed, and the ranks have told what they found.
        engine.ask(a_list(kind, "A list."), salt="restart", tokens=1)
    found: dict[str, Any] = {}
    for kind in ("whole", "torn"):
        before = engine.counted()
        asked = engine.ask(a_list(kind, "Read this with care."), salt="restart")
        found[kind] = {"before": before, "asked": asked, "after": engine.counted()}
        found[kind]["cold"] = engine.ask(a_list(kind, "Read this with care."), salt=f"cold, {kind}", wish="off")
    found["ranks"] = engine.on_ranks("state", tenant=tenant_of_salt("restart"))
    engine.close()
    return found


def _kept_files(engine: RankedEngine, disk: Path, kind: str) -> list[str]:
    before = set(disk.rglob("*.safetensors"))
    engine.ask(a_list(kind, "A list."), salt="restart", tokens=1)
    engine.on_ranks("state", tenant="")  # So that all is written.
    return sorted(str(file.relative_to(disk)) for file in set(disk.rglob("*.safetensors")) - before)


def _tear(disk: Path, files: list[str]) -> None:
    """The second rank has lost its part."""
    for file in files:
        if "rank-1" in file:
            (disk / file).unlink()


if __name__ == "__main__":
    run(main)
