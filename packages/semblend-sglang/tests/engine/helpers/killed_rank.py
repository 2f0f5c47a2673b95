"""The program of ``test_killed_rank.py``: one of two ranks is killed, and the engine is started anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
from archive import first, recipient
from programs import run
from ranked_engine import FORK, LONGEST_S, RankedEngine, import_sglang, in_a_fork
from scenes import ONE, a_list

from semblend_core import tenant_of_salt


def main(model: str, folder: Path) -> dict[str, Any]:
    import_sglang()
    kept = {
        "SEMBLEND_SGLANG_KEEP_DONORS": "1",
        "SEMBLEND_STORE_HOST_BYTES": "0",
        "SEMBLEND_STORE_DISK_BYTES": "1GiB",
        "SEMBLEND_STORE_DISK_PATH": str(folder / "disk"),
    }
    ended = FORK.Process(target=in_a_fork, args=(killed, model, folder), kwargs=kept)
    ended.start()
    ended.join(LONGEST_S)
    found = in_a_fork(anew, model, folder, SEMBLEND_AUDIT_PATH=str(folder / "anew"), **kept)
    return found | {"exit": ended.exitcode, "answered": (folder / "answered").exists()}


def killed(model: str, folder: Path) -> dict[str, Any]:
    """Never returns: SGLang ends its own processes, this one among them, when one of them is gone."""
    engine = RankedEngine(Path(model), folder / "killed", 2)
    engine.ask(first(), salt="tenant", tokens=1)
    engine.on_ranks("state", tenant="")  # So that all is written.
    children = psutil.Process().children(recursive=True)
    next(child for child in children if child.name().endswith("_TP1")).kill()
    engine.ask(recipient(ONE), salt="tenant", tokens=1)
    (folder / "answered").touch()
    return {}


def anew(model: str, folder: Path) -> dict[str, Any]:
    engine = RankedEngine(Path(model), folder / "anew", 2)
    for kind in ("first", "second"):  # The self-test is passed, and the ranks have told what they found.
        engine.ask(a_list(kind, "A list."), salt="tenant", tokens=1)
    before = engine.confirmed()
    asked = engine.ask(recipient(ONE), salt="tenant")
    confirmed = engine.confirmed() - before
    cold = engine.ask(recipient(ONE), salt="cold", wish="off")
    ranks = engine.on_ranks("state", tenant=tenant_of_salt("tenant"))
    engine.close()
    return {"asked": asked, "confirmed": confirmed, "cold": cold, "ranks": ranks}


if __name__ == "__main__":
    run(main)
