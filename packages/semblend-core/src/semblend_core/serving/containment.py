"""Nothing raises into the engine: what fails costs SemBlend something, and a request nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def contain(what: str, call: Callable[..., Result], *args: Any) -> Result | None:
    """What ``call`` returns. None where it raises: that is logged as a failure in ``what``, and ends here."""
    try:
        return call(*args)
    except Exception:
        logger.exception("SemBlend goes on without it: failed in %s", what)
        return None


def contained(method: Callable[Arguments, Result]) -> Callable[Arguments, Result | None]:
    """The same for a method that the engine calls."""

    @wraps(method)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | None:
        return contain(method.__name__, lambda: method(*args, **kwargs))

    return guarded
