"""The folder of the sockets: whoever may enter it may purge."""

from __future__ import annotations

from pathlib import Path

from semblend_core.private_folder import OpenToOthersError, make_private

SUFFIX = ".sock"


class ControlFolderError(ValueError):
    """The folder cannot be used; names it and the fix."""


def prepared(folder: Path) -> Path:
    """``folder``, made if need be, and open to its owner alone."""
    try:
        return make_private(folder, "SEMBLEND_CONTROL_DIR")
    except OpenToOthersError as error:
        raise ControlFolderError(str(error)) from error
    except OSError as error:
        raise ControlFolderError(
            f"SEMBLEND_CONTROL_DIR={str(folder)!r} cannot be made ({error.strerror}): choose another folder"
        ) from error


def sockets_in(folder: Path) -> list[Path]:
    """Schedulers first: what they no longer know, workers are not asked for again."""
    found = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
    return sorted(found, key=lambda path: not path.name.startswith("scheduler"))
