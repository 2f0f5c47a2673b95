"""semblend-proxy: OpenAI's API in front of one server, with a trace of every request for replay.

``uvicorn semblend_dynamo.proxy:app`` or ``semblend-proxy``. It observes, and decides nothing.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "app":
        from semblend_dynamo.proxy.application import app_from_environment

        return app_from_environment()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
