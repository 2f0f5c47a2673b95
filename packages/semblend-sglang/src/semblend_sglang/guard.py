"""Nothing raises into the engine: for calls whose failure costs SemBlend something, and a request nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def guarded(what: str, call: Callable[..., Any], *args: Any) -> Any:
    """What ``call`` returns; None where it raises, which is logged as a failure in ``what`` and ends here."""
    try:
        return call(*args)
    except Exception:
        logger.exception("SemBlend goes on without it: failed in %s", what)
        return None
