"""Mooncake's traces: a hash id for every 512 tokens, each standing for all tokens up to its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from sembench.laboratory.trace_schema import LATEST_MS, MOST_TOKENS, TraceBlock, TraceRequest
from sembench.schema import InputError, read_jsonl

BLOCK_TOKENS = 512


class _Line(BaseModel):
    timestamp: float = Field(ge=0, le=LATEST_MS, allow_inf_nan=False)
    input_length: int = Field(ge=1, le=MOST_TOKENS)
    output_length: int = Field(default=0, ge=0, le=MOST_TOKENS)
    hash_ids: list[Annotated[int, Field(ge=0, le=2**63)]] = Field(min_length=1, max_length=10**6)


def read_mooncake(path: Path) -> Iterator[TraceRequest]:
    for number, line in enumerate(read_jsonl(path, _Line)):
        last = line.input_length - BLOCK_TOKENS * (len(line.hash_ids) - 1)
        if not 0 < last <= BLOCK_TOKENS:
            raise InputError(
                f"{path}: request {number + 1}: input_length: {line.input_length} tokens are not "
                f"{len(line.hash_ids)} blocks of {BLOCK_TOKENS}"
            )
        sizes = [BLOCK_TOKENS] * (len(line.hash_ids) - 1) + [last]
        yield TraceRequest(
            request_id=f"mooncake-{number:06d}",
            timestamp_ms=line.timestamp,
            blocks=[
                TraceBlock(content_hash=str(hash_id), token_count=size, position=position)
                for position, (hash_id, size) in enumerate(zip(line.hash_ids, sizes, strict=True))
            ],
        )


def write_mooncake(requests: Iterable[TraceRequest]) -> Iterator[str]:
    """Blocks of any size, cut anew every 512 tokens. Equal beginnings get equal ids; all else of a request is lost."""
    numbers: dict[int, int] = {}
    for request in requests:
        chain, ids = hash((request.tenant_id or "", request.model_name or "")), []
        for pieces in _cut(request.blocks):
            chain = hash((chain, pieces))
            ids.append(numbers.setdefault(chain, len(numbers)))
        total = sum(block.token_count for block in request.blocks)
        line = {"timestamp": round(request.timestamp_ms), "input_length": total, "output_length": 0, "hash_ids": ids}
        yield _Line.model_validate(line).model_dump_json() + "\n"


def _cut(blocks: list[TraceBlock]) -> Iterator[tuple[tuple[str, int, int], ...]]:
    """Per 512 tokens: which part of which block they are."""
    pieces: list[tuple[str, int, int]] = []
    room = BLOCK_TOKENS
    for block in blocks:
        done = 0
        while done < block.token_count:
            taken = min(room, block.token_count - done)
            pieces.append((block.content_hash, done, taken))
            done, room = done + taken, room - taken
            if not room:
                yield tuple(pieces)
                pieces, room = [], BLOCK_TOKENS
    if pieces:
        yield tuple(pieces)
