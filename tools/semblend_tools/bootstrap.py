"""The tool environment: a virtual environment in the clone that holds a pinned hatch."""

import json
import shutil
import sys
import sysconfig
import venv
from pathlib import Path

from semblend_tools.clone import Clone
from semblend_tools.locking import environments_locked
from semblend_tools.processes import call_or_fail
from semblend_tools.progress import say, step

# Pinned together: hatch drives the others, and a change in one has broken environments before.
TOOL_PINS = ("hatch==1.18.2", "hatchling==1.33.0", "virtualenv==21.15.6", "uv==0.13.8")

STAMP = "semblend-stamp.json"


def interpreter_identity(clone: Clone) -> dict[str, object]:
    """What a virtual environment cannot survive a change of: the base Python and the clone's own place."""
    return {
        "root": str(clone.root),
        "python": sys.version,
        "base": sysconfig.get_config_var("installed_base"),
        "pins": list(TOOL_PINS),
    }


def tool_python(clone: Clone) -> Path:
    """The Python of the tool environment, which is made first when missing, outdated or half-made."""
    folder = clone.tools / "hatch-venv"
    wanted = json.dumps({"pins": list(TOOL_PINS), "python": sys.version})
    if not _is_ready(folder, wanted):
        with environments_locked(clone):
            if not _is_ready(folder, wanted):
                _create(clone, folder, wanted)
    # hatch refuses to start when HATCH_CONFIG names no file; an empty one means its defaults.
    (clone.tools / "hatch-config.toml").touch()
    return folder / "bin" / "python"


def _is_ready(folder: Path, wanted: str) -> bool:
    stamp = folder / STAMP
    return stamp.is_file() and stamp.read_text() == wanted


def _create(clone: Clone, folder: Path, wanted: str) -> None:
    if folder.exists():
        say("the tool environment is out of date or was interrupted: making it anew")
        shutil.rmtree(folder)
    with step(f"creating the tool environment ({TOOL_PINS[0].replace('==', ' ')})"):
        venv.create(folder, with_pip=True, symlinks=True)
        call_or_fail(
            clone,
            [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *TOOL_PINS],
            "could not install hatch into the tool environment; check that pip can reach its package index",
        )
    # Last: an interrupted run leaves no stamp, and the next one starts over.
    (folder / STAMP).write_text(wanted)
