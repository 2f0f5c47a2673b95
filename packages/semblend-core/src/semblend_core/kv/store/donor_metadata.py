"""What is known of a donor on disk: a JSON file, written last, whose presence says that the donor is whole."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from semblend_core.contract import TokenIds, as_token_ids
from semblend_core.kv.store.donor_file import Checksums, FileLayout
from semblend_core.kv.store.kv_spec import DTYPE_NAMES, DTYPES, KvSpec
from semblend_core.kv.store.vocabulary import CorruptDonorError, DonorKey, Quarantine

FORMAT_VERSION = 1
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
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDonorError(Quarantine.BAD_METADATA, f"not a donor's metadata: {error}") from error
    if version != FORMAT_VERSION:
        raise CorruptDonorError(Quarantine.WRONG_VERSION, f"format {version!r}, this is format {FORMAT_VERSION}")
    if digest != _digest(donor):
        raise CorruptDonorError(Quarantine.BAD_METADATA, "changed after it was written")
    try:
        return _metadata(donor)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDonorError(Quarantine.BAD_METADATA, f"incomplete: {error}") from error


def _metadata(donor: dict[str, Any]) -> DonorMetadata:
    spec = KvSpec(
        layers=donor["layers"],
        tokens=donor["tokens"],
        kv_heads=donor["kv_heads"],
        key_dim=donor["key_dim"],
        value_dim=donor["value_dim"],
        dtype=DTYPES[donor["dtype"]],
        first_position=donor["first_position"],
    )
    checksums = np.frombuffer(bytes.fromhex(donor["checksums"]), ">u4").astype(np.uint32)
    if not spec.storable or checksums.size != FileLayout(spec).chunks or donor["checksum"] != "crc32":
        raise ValueError("shape and checksums do not go together")
    ids = donor["token_ids"]
    token_ids = None if ids is None else as_token_ids(ids)
    if token_ids is not None and token_ids.size != spec.tokens:
        raise ValueError("token ids and tokens do not go together")
    return DonorMetadata(
        DonorKey(donor["namespace"], donor["donor_id"]), donor["generation"], spec, checksums, token_ids
    )


def _digest(donor: object) -> str:
    encoded = json.dumps(donor, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(encoded, digest_size=16, person=b"semblend-meta-v1").hexdigest()
