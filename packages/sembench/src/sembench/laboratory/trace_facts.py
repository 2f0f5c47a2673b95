"""What a trace holds, in a few figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sembench.laboratory.requests import CacheRequest
from sembench.schema import InputError

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def facts_of(requests: Sequence[CacheRequest], path: Path) -> dict[str, Any]:
    return {
        "file": path.name,
        "requests": len(requests),
        "blocks": sum(len(request.keys) for request in requests),
        "different_blocks": len({key for request in requests for key in request.keys}),
        "tokens": sum(request.total_tokens for request in requests),
        "different_tokens": different_tokens(requests),
        "seconds": round(requests[-1].at_s - requests[0].at_s, 3),
    }


def different_blocks(requests: Sequence[CacheRequest]) -> dict[int, int]:
    """Tokens of each block that any request has."""
    return {key: tokens for request in requests for key, tokens in zip(request.keys, request.tokens, strict=True)}


def different_tokens(requests: Sequence[CacheRequest]) -> int:
    """Tokens of all different blocks: a cache of this size never evicts."""
    return sum(different_blocks(requests).values())


def budget_of_share(requests: Sequence[CacheRequest], share: float) -> int:
    return max(1, int(share * different_tokens(requests)))


def name_of(trace: Path, given: str | None) -> str:
    """Of the output folder. A given name must be one; the trace's own is made one."""
    if given is not None:
        if not _PLAIN_NAME.fullmatch(given):
            raise InputError(
                f"--output-name {given!r:.100}: use letters, digits, dots, dashes and underscores, at most 80"
            )
        return given
    plain = re.sub("[^A-Za-z0-9._-]+", "_", trace.stem or trace.name).strip("._-")[:80]
    return plain or "trace"
