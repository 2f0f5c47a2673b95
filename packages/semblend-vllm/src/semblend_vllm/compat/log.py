"""SemBlend's lines in vLLM's log."""

from __future__ import annotations

import logging


def join_engines_log() -> None:
    """vLLM sets up its own logger and leaves the root alone: what others say at INFO would be lost.

    Where somebody has set up the root, or one of ours, that holds.
    """
    engine = logging.getLogger("vllm")
    if logging.getLogger().handlers:
        return
    for name in ("semblend_core", "semblend_vllm"):
        ours = logging.getLogger(name)
        if not ours.handlers and ours.level == logging.NOTSET:
            ours.handlers = list(engine.handlers)
            ours.setLevel(engine.getEffectiveLevel())
