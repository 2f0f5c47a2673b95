"""A donor as LMCache keeps it: a row of bytes per token, its layers one behind the other, and a checksum per chunk.

LMCache knows neither the type nor the shape of what it holds: so keys and values may be of different lengths, and what
comes back is checked, whichever server it lay on.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from semblend_core.kv.store.donor_file import raw_bytes
from semblend_core.kv.store.kv_spec import KvSpec, LayerTensors
from semblend_core.kv.store.vocabulary import CorruptDonorError, Quarantine

CHUNK_TOKENS = 256
"""Tokens that lie under one key of LMCache's."""
_MARK = b"SBK1"
TAIL_BYTES = 8
"""Bytes behind each row. Those of a chunk's last row hold the mark and the checksum, the others nothing."""


def row_bytes(spec: KvSpec) -> int:
    return spec.layers * sum(spec.row_bytes) + TAIL_BYTES


def pack(spec: KvSpec, layers: Sequence[LayerTensors]) -> Tensor:
    """All rows of a donor, in plain memory. Waits for the copies."""
    rows = torch.zeros((spec.tokens, row_bytes(spec)), dtype=torch.uint8)
    offset = 0
    for tensors in layers:
        for tensor in tensors[: len(spec.dims)]:
            assert tensor is not None
            flat = tensor.contiguous().view(spec.tokens, -1).view(torch.uint8)
            rows[:, offset : offset + flat.shape[1]].copy_(flat)
            offset += flat.shape[1]
    return rows


def unpack(rows: Tensor, spec: KvSpec, layers: Sequence[LayerTensors], first: int) -> None:
    """Bring ``rows`` into tokens ``first`` onwards of ``layers``."""
    offset, tokens = 0, rows.shape[0]
    for tensors in layers:
        for tensor, dim, size in zip(tensors[: len(spec.dims)], spec.dims, spec.row_bytes, strict=True):
            assert tensor is not None
            part = rows[:, offset : offset + size].contiguous().view(spec.dtype)
            tensor[first : first + tokens].copy_(part.view(tokens, spec.kv_heads, dim))
            offset += size


def seal(chunk: Tensor) -> None:
    """Write the checksum of a chunk's rows behind them."""
    content = raw_bytes(chunk)
    content[-TAIL_BYTES:] = _MARK + zlib.crc32(content[:-TAIL_BYTES]).to_bytes(4, "big")


def check(chunk: Tensor) -> None:
    """CorruptDonorError unless the rows are the ones that were sealed."""
    content = raw_bytes(chunk)
    if bytes(content[-TAIL_BYTES:]) != _MARK + zlib.crc32(content[:-TAIL_BYTES]).to_bytes(4, "big"):
        raise CorruptDonorError(Quarantine.CHECKSUM, "what LMCache holds is not what was stored")
