"""Runs inside SGLang's scheduler process: core's provider, and the KV of whoever was served with reuse, on record."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from semblend_core import SemBlend, Settings, create_provider
from semblend_sglang.compat.cache import SemBlendCache
from semblend_sglang.worker.looking import Look

FOLDER = "KV_ON_RECORD"
"""The variable that names it. It is written to while it is there."""
BLIND = "blind"
"""A file in it. While it is there, probes show nothing."""


def provider() -> SemBlend:
    Look.scores = _noting_scores(Look.scores)  # type: ignore[method-assign]
    SemBlendCache._keep_approximate = _noting(SemBlendCache._keep_approximate)  # type: ignore[method-assign]
    without_this = {name: value for name, value in os.environ.items() if name != "SEMBLEND_SGLANG_PROVIDER"}
    return create_provider(Settings.from_env(without_this), engine="sglang")


def _noting(method: Callable[..., None]) -> Callable[..., None]:
    """When a prompt was computed, and again when its answer is complete."""

    def noting(cache: Any, req: Any, up_to: int) -> None:
        folder = Path(os.environ[FOLDER])
        prompt, file = len(req.origin_input_ids), folder / f"{req.rid}.pt"
        if folder.is_dir() and up_to >= prompt and not file.exists():
            kv = cache.semblend.pool.take_slots(cache.semblend_row(req)[:prompt].long())
            claim = cache.semblend.requests.of_request(req).claim
            torch.save(
                {
                    "tokens": list(req.origin_input_ids),
                    "rows": list(claim.rows),
                    "correction": asdict(claim.correction),
                    "keys": kv.keys,
                    "values": kv.values,
                },
                file,
            )
        method(cache, req, up_to)

    return noting


def _noting_scores(method: Callable[[Look], Any]) -> Callable[[Look], Any]:
    def noting(look: Look) -> Any:
        folder, found = Path(os.environ[FOLDER]), method(look)
        if (folder / BLIND).exists():
            return None
        if folder.is_dir() and found is not None:
            torch.save(torch.from_numpy(found), folder / "scores")
        return found

    return noting
