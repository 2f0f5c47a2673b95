"""semblend-router: OpenAI's API in front of several replicas, or of a gateway in front of them.

``uvicorn semblend_dynamo.router:app`` or ``semblend-router``. Read in this order: ``settings``, ``replicas``,
``asked``, ``policies``, ``backends``, ``service``, ``application``.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Made when uvicorn asks for it, from the environment: whoever imports the settings needs no web framework.
    if name == "app":
        from semblend_dynamo.router.application import app_from_environment

        return app_from_environment()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
