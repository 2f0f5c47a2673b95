"""Which KV may be used for which request: everything that must be equal for two KV blocks to mean the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import InitVar, dataclass, field


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """The identity of a KV pool as one tenant sees it. Capture and lookup build it with this constructor alone.

    Two requests may share KV only if their namespaces are equal. No field is a wildcard: ``adapter=None``
    means the base model and ``salt=None`` means the unsalted tenant, each a value of its own that equals
    nothing but itself.

    ``salt`` is hashed on the way in and then gone: it is in no attribute, repr, digest, pickle or log line.
    The hash is not keyed (it must be the same in every process), so a guessable salt can be guessed from its digest.
    """

    model: str
    """Name or path the engine serves, as the engine spells it."""
    revision: str
    """Revision or content hash of the weights. An engine that has none passes a fixed word such as ``"local"``."""
    tokenizer: str
    """Name and revision of the tokenizer: equal ids must mean equal text."""
    dtype: str
    """Storage type of the KV cache, such as ``"bfloat16"``."""
    kv_layout: str
    """How a block is laid out in memory, such as ``"nhd"``; adapters choose the word, never two for one layout."""
    block_size: int
    """Tokens per KV block of the engine; 1 where the pool is not paged."""
    adapter: str | None
    """LoRA or other adapter identity; None is the base model."""
    tensor_parallel_size: int = 1
    tensor_parallel_rank: int = 0
    """Rank whose shard of the heads this is. Discovery runs once, with rank 0; each rank stores its own bytes."""
    extras: tuple[tuple[str, str], ...] = ()
    """Further engine fields that must agree, such as multimodal hashes: (name, value), kept sorted by name."""
    salt: InitVar[str | None]
    """Raw tenant salt; None is the unsalted tenant. Never kept."""
    salt_digest: str = field(init=False)
    """16 hex digits standing for the salt: the tenant."""
    digest: str = field(init=False)
    """32 hex digits standing for all fields; equal in every process, the key of stores and indexes.

    The first 16 are ``salt_digest``: whatever is kept under a digest can be found by its tenant. Those of one
    namespace's ranks tell each other: see ``digest_at_rank``.
    """

    def __post_init__(self, salt: str | None) -> None:
        for name in ("model", "revision", "tokenizer", "dtype", "kv_layout"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"namespace field {name!r} must be a non-empty string, got {getattr(self, name)!r}")
        if self.adapter is not None and (not isinstance(self.adapter, str) or not self.adapter):
            raise ValueError("namespace field 'adapter' must be a non-empty string, or None for the base model")
        if salt is not None and not isinstance(salt, str):
            raise ValueError("namespace field 'salt' must be a string, or None for the unsalted tenant")
        if self.block_size < 1:
            raise ValueError(f"namespace field 'block_size' must be at least 1, got {self.block_size}")
        if not 0 <= self.tensor_parallel_rank < self.tensor_parallel_size:
            raise ValueError(
                f"tensor_parallel_rank {self.tensor_parallel_rank} is outside tensor_parallel_size "
                f"{self.tensor_parallel_size}"
            )
        object.__setattr__(self, "extras", tuple(sorted((str(k), str(v)) for k, v in self.extras)))
        object.__setattr__(self, "salt_digest", tenant_of_salt(salt))
        object.__setattr__(self, "digest", self._compute_digest())

    @property
    def is_salted(self) -> bool:
        """Whether it is a tenant's. Those without a salt cannot be told apart from each other."""
        return self.salt_digest != _UNSALTED

    def for_rank(self, rank: int) -> Namespace:
        """The same namespace as tensor-parallel rank ``rank`` stores it."""
        sibling = object.__new__(Namespace)
        sibling.__dict__.update(self.__dict__, tensor_parallel_rank=rank)
        if not 0 <= rank < self.tensor_parallel_size:
            raise ValueError(f"rank {rank} is outside tensor_parallel_size {self.tensor_parallel_size}")
        object.__setattr__(sibling, "digest", sibling._compute_digest())
        return sibling

    def for_tenant(self, salt_digest: str) -> Namespace:
        """The same namespace as another tenant has it, of whose salt only the digest is known.

        For what is told from process to process, where raw salts must not go.
        """
        if len(salt_digest) != len(_UNSALTED) or set(salt_digest) - set("0123456789abcdef"):
            raise ValueError(f"salt_digest must be {len(_UNSALTED)} hexadecimal digits, got {salt_digest!r}")
        sibling = object.__new__(Namespace)
        sibling.__dict__.update(self.__dict__, salt_digest=salt_digest)
        object.__setattr__(sibling, "digest", sibling._compute_digest())
        return sibling

    def _compute_digest(self) -> str:
        identity = {name: value for name, value in self.__dict__.items() if name != "digest"}
        identity["tensor_parallel_rank"] = 0
        encoded = json.dumps(identity, sort_keys=True, ensure_ascii=True).encode()
        shared = self.salt_digest + hashlib.blake2b(encoded, digest_size=8, person=b"semblend-ns-v2").hexdigest()
        return digest_at_rank(shared, self.tensor_parallel_rank)


def tenant_of_salt(salt: str | None) -> str:
    """The 16 hex digits that stand for a salt; None is the unsalted tenant."""
    # The leading byte keeps the unsalted tenant apart from the tenant whose salt is the empty string.
    # Surrogates pass, since an encoding error would carry the raw salt with it.
    encoded = b"\x00" if salt is None else b"\x01" + salt.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, digest_size=8, person=b"semblend-salt-v1").hexdigest()


_UNSALTED = tenant_of_salt(None)


def digest_at_rank(namespace_digest: str, rank: int) -> str:
    """The digest under which tensor-parallel rank ``rank`` stores what rank 0, and discovery, know by this one.

    And back: what a rank finds on disk has no name but its digest, and the other ranks know it by theirs.
    """
    if rank == 0:
        return namespace_digest
    mask = hashlib.blake2b(str(rank).encode(), digest_size=8, person=b"semblend-rank-v1").digest()
    own = int(namespace_digest[16:], 16) ^ int.from_bytes(mask)
    return f"{namespace_digest[:16]}{own:016x}"


def tenant_of(namespace_digest: str) -> str:
    """Whose namespace it is."""
    return namespace_digest[:16]
