"""Requests of our own, which SGLang computes while it has nothing else to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semblend_core import TokenIds
from semblend_sglang.scheduler.requests import SglangLife, TreeKey


@dataclass(frozen=True, slots=True)
class Asker:
    """What such a request has in common with the one that it is made for, besides tokens."""

    key: TreeKey
    adapter: str | None
    tokenizer: str | None
    """SGLang's tokenizer process that sent the request, where there are several."""

    @classmethod
    def of(cls, life: SglangLife) -> Asker:
        return cls(life.key, life.request.lora_id, life.request.http_worker_ipc)


@dataclass(frozen=True, slots=True)
class Order:
    token_ids: TokenIds
    asker: Asker
    scored_from: int | None = None
    """Every token behind this position is scored; None: none is."""
    begin: Callable[[Any], None] = lambda request: None
    """Called with SGLang's request before it is computed."""
