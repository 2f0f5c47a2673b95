"""The file of one donor's tensors: safetensors, with a checksum per chunk kept in the donor's metadata.

A chunk is a run of tokens of one layer of one tensor, about 1 MiB, so that a few wanted tokens do not cost the reading
of a whole layer. The checksum is CRC-32: of what the standard library has it is the fastest by far, and its task is
to find damage, not to withstand forgery.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.contract import TokenIds, as_token_ids
from semblend_core.kv.store.kv_spec import DTYPE_NAMES, DTYPES, KvSpec, LayerTensors
from semblend_core.kv.store.vocabulary import CorruptDonorError, DonorKey, FormerDonorError, Quarantine

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


def open_file(path: Path) -> int:
    """Of a file that the store wrote: no link, and nothing that never ends or never answers. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a plain file", str(path))


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


LARGEST_METADATA = 64 * 1024**2
"""Of five million tokens. A larger file was not written by the store."""

FORMAT_VERSION = 2
FORMER_VERSIONS = (1,)
"""1: weights were told by the times of their files."""
_FIXED_BYTES = 1024
_BYTES_PER_TOKEN_ID = 11  # Ten digits and a comma.
_BYTES_PER_CHECKSUM = 8
_BYTES_PER_ID_CHARACTER = 12  # Escaped as two \\uXXXX at worst.


@dataclass(frozen=True, slots=True, eq=False)
class DonorMetadata:
    key: DonorKey
    generation: int
    """Tells a donor from an earlier one of the same id; the larger is the later."""
    spec: KvSpec
    checksums: Checksums
    token_ids: TokenIds | None
    born: int = 0
    """When it was captured, in nanoseconds since 1970. It may have been written later, or again."""

    @property
    def stem(self) -> str:
        """Name of its files without the ending. A digest: donor ids may hold any character."""
        identity = f"{self.key.namespace}\0{self.key.donor_id}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(identity, digest_size=16, person=b"semblend-file-v1")
        return f"{digest.hexdigest()}-{self.generation:016x}"


def largest_metadata(key: DonorKey, layout: FileLayout, token_ids: TokenIds | None) -> int:
    """Bytes that the metadata can take at most, known before anything is written."""
    ids = 0 if token_ids is None else int(token_ids.size)
    size = _FIXED_BYTES + len(key.namespace) + _BYTES_PER_ID_CHARACTER * len(key.donor_id)
    return size + _BYTES_PER_TOKEN_ID * ids + _BYTES_PER_CHECKSUM * layout.chunks


def encode_metadata(metadata: DonorMetadata) -> bytes:
    spec = metadata.spec
    donor = {
        "namespace": metadata.key.namespace,
        "donor_id": metadata.key.donor_id,
        "generation": metadata.generation,
        "born": metadata.born,
        "layers": spec.layers,
        "tokens": spec.tokens,
        "kv_heads": spec.kv_heads,
        "key_dim": spec.key_dim,
        "value_dim": spec.value_dim,
        "dtype": DTYPE_NAMES[spec.dtype],
        "first_position": spec.first_position,
        "checksum": "crc32",
        "checksums": metadata.checksums.astype(">u4").tobytes().hex(),
        "token_ids": None if metadata.token_ids is None else metadata.token_ids.tolist(),
    }
    whole = {"format": FORMAT_VERSION, "digest": _digest(donor), "donor": donor}
    return json.dumps(whole, separators=(",", ":")).encode()


def decode_metadata(content: bytes) -> DonorMetadata:
    """Raises CorruptDonorError unless ``content`` is, to the letter, what was written."""
    try:
        whole = json.loads(content)
        version, digest, donor = whole["format"], whole["digest"], whole["donor"]
        is_as_written = digest == _digest(donor)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptDonorError(Quarantine.BAD_METADATA, f"not a donor's metadata: {error}") from error
    if version in FORMER_VERSIONS:
        raise FormerDonorError(Quarantine.WRONG_VERSION, f"format {version}, this is format {FORMAT_VERSION}")
    if version != FORMAT_VERSION:
        raise CorruptDonorError(Quarantine.WRONG_VERSION, f"format {version!r}, this is format {FORMAT_VERSION}")
    if not is_as_written:
        raise CorruptDonorError(Quarantine.BAD_METADATA, "changed after it was written")
    try:
        return _metadata(donor)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDonorError(Quarantine.BAD_METADATA, f"incomplete: {error}") from error


def _metadata(donor: dict[str, Any]) -> DonorMetadata:
    spec = KvSpec(
        layers=_whole(donor["layers"]),
        tokens=_whole(donor["tokens"]),
        kv_heads=_whole(donor["kv_heads"]),
        key_dim=_whole(donor["key_dim"]),
        value_dim=None if donor["value_dim"] is None else _whole(donor["value_dim"]),
        dtype=DTYPES[donor["dtype"]],
        first_position=_whole(donor["first_position"]),
    )
    checksums = np.frombuffer(bytes.fromhex(donor["checksums"]), ">u4").astype(np.uint32)
    if not spec.storable or checksums.size != FileLayout(spec).chunks or donor["checksum"] != "crc32":
        raise ValueError("shape and checksums do not go together")
    ids = donor["token_ids"]
    token_ids = None if ids is None else as_token_ids(ids)
    if token_ids is not None and token_ids.size != spec.tokens:
        raise ValueError("token ids and tokens do not go together")
    if not isinstance(donor["namespace"], str) or not isinstance(donor["donor_id"], str):
        raise ValueError("it does not say whose it is")
    key = DonorKey(donor["namespace"], donor["donor_id"])
    return DonorMetadata(key, _whole(donor["generation"]), spec, checksums, token_ids, _whole(donor["born"]))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError("not a number of tokens, heads, layers or the like")
    return value


def _digest(donor: object) -> str:
    encoded = json.dumps(donor, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(encoded, digest_size=16, person=b"semblend-meta-v1").hexdigest()
