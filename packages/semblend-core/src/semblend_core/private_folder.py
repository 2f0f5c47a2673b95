"""Folders for their owner alone: what lies in them gives prompts away."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class OpenToOthersError(ValueError):
    """Others may enter a folder, and it is not ours to close."""


def make_private(folder: Path, setting: str) -> Path:
    """``folder``, made if need be. One that others may enter is closed to them where it is ours, and refused where not.

    ``setting``: what names it, for the error.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if not stat.S_IMODE(state.st_mode) & 0o077:
        return folder
    if state.st_uid != os.geteuid():
        raise OpenToOthersError(
            f"{setting}={str(folder)!r} belongs to user {state.st_uid} and is open to others: choose a folder of your "
            f"own, or have its owner run `chmod 700` on it"
        )
    folder.chmod(0o700)
    return folder
