"""Optional dependencies: imported when used, with an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType


class MissingExtraError(ImportError):
    """A feature whose optional dependency is not installed."""


def require_extra(module: str, *, distribution: str, extra: str) -> ModuleType:
    """Import ``module``, or say which extra of which distribution brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # The module is there; something that it needs is not.
        raise MissingExtraError(
            f"{module} is not installed: run `pip install '{distribution}[{extra}]'`", name=module
        ) from error
