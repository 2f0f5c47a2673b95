"""The file of one donor's tensors: safetensors, with a checksum per chunk kept in the donor's metadata.

A chunk is a run of tokens of one layer of one tensor, about 1 MiB, so that a few wanted tokens do not cost the reading
of a whole layer. The checksum is CRC-32: of what the standard library has it is the fastest by far, and its task is
to find damage, not to withstand forgery.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.kv.store.kv_spec import DTYPE_NAMES, KvSpec, LayerTensors

CHUNK_BYTES = 1024**2
TENSOR_NAMES = ("keys", "values")

Checksums = npt.NDArray[np.uint32]
"""In the file's order: by tensor, layer, chunk."""

_SAFETENSORS_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive chunks of one layer of one tensor."""

    offset: int
    """Where they begin in the file."""
    nbytes: int
    first_token: int
    tokens: int
    chunk_bytes: int
    first_checksum: int


class FileLayout:
    """Where everything lies in the file of a donor of this shape: the same in every process."""

    def __init__(self, spec: KvSpec) -> None:
        self.spec = spec
        self.header = _header(spec)
        self.chunk_tokens = tuple(max(1, CHUNK_BYTES // row) for row in spec.row_bytes)
        self.chunks_per_layer = tuple(-(-spec.tokens // tokens) for tokens in self.chunk_tokens)
        self.chunks = spec.layers * sum(self.chunks_per_layer)
        self.nbytes = len(self.header) + spec.nbytes

    def pieces(self, tensor: int, layer: int, start: int, stop: int, max_bytes: int) -> Iterator[Piece]:
        """The whole chunks that cover tokens ``start`` to ``stop``, in pieces of about ``max_bytes``."""
        row, step = self.spec.row_bytes[tensor], self.chunk_tokens[tensor]
        per_piece = max(1, max_bytes // (row * step))
        base = len(self.header) + self.spec.layers * self.spec.tokens * sum(self.spec.row_bytes[:tensor])
        base += layer * self.spec.tokens * row
        checksums = self.spec.layers * sum(self.chunks_per_layer[:tensor]) + layer * self.chunks_per_layer[tensor]
        last = -(-stop // step)
        for chunk in range(start // step, last, per_piece):
            first = chunk * step
            end = min(min(chunk + per_piece, last) * step, self.spec.tokens)
            nbytes = (end - first) * row
            yield Piece(base + first * row, nbytes, first, end - first, row * step, checksums + chunk)

    def largest_chunk(self) -> int:
        return max(row * step for row, step in zip(self.spec.row_bytes, self.chunk_tokens, strict=True))


def write_tensors(descriptor: int, layout: FileLayout, layers: Sequence[LayerTensors]) -> Checksums:
    """Write header and tensors; ``layers`` are in host memory or are brought there one at a time."""
    checksums = np.zeros(layout.chunks, np.uint32)
    write_all(descriptor, memoryview(layout.header))
    for tensor in range(len(layout.spec.dims)):
        for layer, tensors in enumerate(layers):
            content = raw_bytes(_present(tensors[tensor]))
            (piece,) = layout.pieces(tensor, layer, 0, layout.spec.tokens, layout.spec.nbytes + CHUNK_BYTES)
            found = chunk_checksums(content, piece.chunk_bytes)
            checksums[piece.first_checksum : piece.first_checksum + len(found)] = found
            write_all(descriptor, content)
    return checksums


def raw_bytes(tensor: Tensor) -> memoryview:
    """The tensor's bytes, without a copy where it is contiguous in host memory."""
    flat: npt.NDArray[np.uint8] = tensor.to("cpu").contiguous().view(torch.uint8).reshape(-1).numpy()
    return flat.data


def chunk_checksums(content: memoryview, chunk_bytes: int) -> list[int]:
    return [zlib.crc32(content[start : start + chunk_bytes]) for start in range(0, len(content), chunk_bytes)]


def write_all(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def read_all(descriptor: int, content: memoryview, offset: int) -> bool:
    """Fill ``content`` from ``offset`` on. False when the file ends before."""
    while content:
        count = os.preadv(descriptor, [content], offset)
        if count == 0:
            return False
        content, offset = content[count:], offset + count
    return True


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "the shape promises values"
    return tensor


def _header(spec: KvSpec) -> bytes:
    """A safetensors header: its length, then JSON padded with spaces to a multiple of 8."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "first_position": str(spec.first_position)}}
    offset = 0
    for name, dim, row in zip(TENSOR_NAMES, spec.dims, spec.row_bytes, strict=False):
        end = offset + spec.layers * spec.tokens * row
        entries[name] = {
            "dtype": _SAFETENSORS_DTYPES[DTYPE_NAMES[spec.dtype]],
            "shape": [spec.layers, spec.tokens, spec.kv_heads, dim],
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
