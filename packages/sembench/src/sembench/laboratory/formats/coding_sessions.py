"""Coding agents' sessions as callanjfox/kv-cache-tester publishes them: one JSON file per session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from sembench.laboratory.trace_schema import MOST_TOKENS, TraceBlock, TraceRequest
from sembench.schema import InputError, read_json

BLOCK_TOKENS = 512
"""Hash ids of 64 tokens are taken together up to this: sessions of a million tokens would be too many blocks."""
SESSION_GAP_S = 60.0
"""Each session begins at its own zero: a minute apart, they run beside each other as on a busy server."""
_Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class _Request(BaseModel):
    t: _Seconds = 0.0
    type: str = "n"
    model: str = Field(default="", max_length=200)
    tokens: int = Field(default=0, alias="in", ge=0, le=MOST_TOKENS)
    ttft: _Seconds | None = None
    hash_ids: list[int] = Field(default_factory=list, max_length=10**6)
    tool_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)
    system_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)
    requests: list[_Request] = Field(default_factory=list)
    """Of a sub-agent: its own, timed from when it began."""


class _Session(BaseModel):
    id: str = Field(max_length=200)
    block_size: int = Field(default=64, ge=1, le=65536)
    tool_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)
    system_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)
    requests: list[_Request] = Field(min_length=1)


def read_coding_sessions(path: Path, gap_s: float = SESSION_GAP_S) -> Iterator[TraceRequest]:
    """A session's file, or a folder of them. Requests come session by session: sort them by time before a replay."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: holds no .json files")
    for number, file in enumerate(files):
        session = read_json(file, _Session)
        opening = (session.tool_tokens, session.system_tokens)
        for index, (at_s, request, own) in enumerate(_flat(session.requests, number * gap_s, opening)):
            yield _as_trace(session, index, at_s, request, own)


def _flat(
    requests: list[_Request], start_s: float, opening: tuple[int, int]
) -> Iterator[tuple[float, _Request, tuple[int, int]]]:
    for request in requests:
        if request.requests:
            yield from _flat(request.requests, start_s + request.t, (request.tool_tokens, request.system_tokens))
        elif request.hash_ids:
            yield start_s + request.t, request, opening


def _as_trace(session: _Session, index: int, at_s: float, request: _Request, opening: tuple[int, int]) -> TraceRequest:
    return TraceRequest(
        request_id=f"{session.id}-{index:05d}",
        timestamp_ms=at_s * 1000,
        session_id=session.id,
        model_name=request.model or None,
        blocks=[TraceBlock(**block) for block in _blocks(session, index, request, opening)],
        observed_ttft_ms=None if request.ttft is None else request.ttft * 1000,
    )


def _blocks(session: _Session, index: int, request: _Request, opening: tuple[int, int]) -> Iterator[dict[str, Any]]:
    together = max(1, BLOCK_TOKENS // session.block_size)
    for start in range(0, len(request.hash_ids), together):
        ids = request.hash_ids[start : start + together]
        position = start * session.block_size
        # Ids are counted anew in every session.
        name = f"{session.id}:{'.'.join(map(str, ids))}"
        yield {
            "content_hash": name if len(name) <= 256 else hashlib.sha256(name.encode()).hexdigest(),
            "token_count": len(ids) * session.block_size,
            "semantic_type": _kind(position, opening),
            "position": start // together,
        }
    rest = request.tokens - len(request.hash_ids) * session.block_size
    if rest > 0:  # Tokens behind the last full block have no id: nobody can say whether they recur.
        yield {"content_hash": f"{session.id}:rest:{index}", "token_count": rest, "semantic_type": "other"}


def _kind(position: int, opening: tuple[int, int]) -> str:
    """Tools come first, then the system prompt; what follows is not told apart."""
    tools, system = opening
    if position < tools:
        return "template"
    return "system" if position < tools + system else "other"
