"""A donor as LMCache keeps it: a row of bytes per token, its layers one behind the other, and a checksum per chunk.

LMCache knows neither the type nor the shape of what it holds: so keys and values may be of different lengths, and what
comes back is checked, whichever server it lay on.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from semblend_core.kv.store.donor_file import raw_bytes
from semblend_core.kv.store.kv_spec import KvSpec, LayerTensors
from semblend_core.kv.store.vocabulary import CorruptDonorError, Quarantine

CHUNK_TOKENS = 256
"""Tokens that lie under one key of LMCache's."""
_MARK = b"SBK2"
TAIL_BYTES = 8
"""Bytes behind each row. Those of a chunk's last row hold the mark and the checksum, the others nothing."""


def row_bytes(spec: KvSpec) -> int:
    return spec.layers * sum(spec.row_bytes) + TAIL_BYTES


def pack(spec: KvSpec, layers: Sequence[LayerTensors]) -> Tensor:
    """All rows of a donor, in plain memory. Waits for the copies."""
    rows = torch.zeros((spec.tokens, row_bytes(spec)), dtype=torch.uint8)
    for row_part, tensors in _pairs(rows, spec, layers):
        row_part.copy_(tensors)
    return rows


def unpack(rows: Tensor, spec: KvSpec, layers: Sequence[LayerTensors], first: int) -> None:
    """Bring ``rows`` into tokens ``first`` onwards of ``layers``."""
    for row_part, tensors in _pairs(rows, spec, layers):
        tensors[..., first : first + rows.shape[0], :, :].copy_(row_part)


def _pairs(rows: Tensor, spec: KvSpec, layers: Sequence[LayerTensors]) -> Iterator[tuple[Tensor, Tensor]]:
    """Keys and values inside ``rows`` beside those of ``layers``: all layers at once where these lie evenly in memory.

    So it takes few calls. After each of them another thread may have the interpreter, and keeps it for 5 ms: layer by
    layer a donor took seconds beside a busy engine.
    """
    content = rows[:, :-TAIL_BYTES].view(spec.dtype).view(rows.shape[0], spec.layers, -1)
    offset = 0
    for kind, dim in enumerate(spec.dims):
        width = spec.kv_heads * dim
        held = content[:, :, offset : offset + width].view(rows.shape[0], spec.layers, spec.kv_heads, dim)
        offset += width
        tensors = [tensor for each in layers if (tensor := each[kind]) is not None]
        joined = _joined(tensors)
        if joined is not None:
            yield held.transpose(0, 1), joined
        else:
            yield from zip(held.unbind(1), tensors, strict=True)


def _joined(layers: list[Tensor]) -> Tensor | None:
    """One view [layers, ...] of tensors of one shape, where they lie in one memory at even distances."""
    first = layers[0]
    places = [layer.data_ptr() for layer in layers]
    apart = places[1] - places[0] if len(places) > 1 else 0
    memory = first.untyped_storage().data_ptr()
    even = all(
        layer.untyped_storage().data_ptr() == memory
        and layer.stride() == first.stride()
        and place == places[0] + i * apart
        for i, (layer, place) in enumerate(zip(layers, places, strict=True))
    )
    if not even or apart < 0 or apart % first.itemsize:
        return None
    return first.as_strided((len(layers), *first.shape), (apart // first.itemsize, *first.stride()))


def seal(chunk: Tensor, whose: int) -> None:
    """Write the checksum of a chunk's rows behind them. ``whose``: a number of the chunk that they belong to."""
    content = raw_bytes(chunk)
    content[-TAIL_BYTES:] = _checksum(content, whose)


def check(chunk: Tensor, whose: int) -> None:
    """CorruptDonorError unless the rows are the ones that were sealed, and this chunk's: servers may mix them up."""
    content = raw_bytes(chunk)
    if bytes(content[-TAIL_BYTES:]) != _checksum(content, whose):
        raise CorruptDonorError(Quarantine.CHECKSUM, "what LMCache holds is not what was stored")


def _checksum(content: memoryview, whose: int) -> bytes:
    return _MARK + zlib.crc32(content[:-TAIL_BYTES], whose).to_bytes(4, "big")
