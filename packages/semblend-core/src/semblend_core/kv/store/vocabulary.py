"""The words of the donor store: its tiers, its reasons, and the small values it hands out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from semblend_core.contract import TokenIds


class Tier(StrEnum):
    """Where a donor's bytes lie. Declared from the fastest to the slowest."""

    DEVICE = "device"
    """The engine's own memory: CUDA tensors, or plain memory where the engine runs on a CPU."""
    HOST = "host"
    """Pinned host memory (plain memory on a machine without CUDA)."""
    DISK = "disk"
    """Checksummed safetensors files that survive the process."""
    LMCACHE = "lmcache"
    """LMCache's memory in this process, or a server behind it that others share."""


class DonorKey(NamedTuple):
    """A donor as the store knows it."""

    namespace: str
    """Digest of its namespace."""
    donor_id: str


class StoreDecline(StrEnum):
    """Why a donor was not kept, not moved, or not loaded. Each is a label of a counter."""

    CLOSED = "closed"
    DUPLICATE_DONOR = "duplicate_donor"
    """A donor of that id is held or on its way; forget it first."""
    INVALID_KV = "invalid_kv"
    """Empty, of a type the store does not know, on another device, or not as long as its token ids."""
    TOO_LARGE = "too_large"
    """No tier could hold it, even empty."""
    QUEUE_FULL = "queue_full"
    """Copies or writes are slower than the donors arrive."""
    NO_ROOM = "no_room"
    """What would have to go is pinned, or the free memory is in pieces that are too small."""
    OUT_OF_MEMORY = "out_of_memory"
    """The tier's budget had room, the machine had none."""
    DISK_FULL = "disk_full"
    DISK_ERROR = "disk_error"
    COPY_FAILED = "copy_failed"
    FORGOTTEN = "forgotten"
    """Forgotten while its bytes were on their way."""
    CORRUPT = "corrupt"
    """Its bytes are not the ones that were written."""
    LMCACHE_ERROR = "lmcache_error"
    """LMCache, or the server behind it, did not do what it was asked to."""
    EVICTED_ELSEWHERE = "evicted_elsewhere"
    """LMCache, or another process that shares the donor, has let it go."""


class Miss(StrEnum):
    """Why ``acquire`` found nothing."""

    UNKNOWN = "unknown"
    """Never held, evicted, or forgotten."""
    NOT_DURABLE = "not_durable"
    """Its bytes are on their way."""
    CLOSED = "closed"


class Quarantine(StrEnum):
    """What was wrong with a file that is kept aside."""

    BAD_METADATA = "bad_metadata"
    """Its metadata cannot be read, or was changed after it was written."""
    WRONG_VERSION = "wrong_version"
    MISMATCH = "mismatch"
    """Metadata and file do not belong together."""
    MISSING_DATA = "missing_data"
    TRUNCATED = "truncated"
    CHECKSUM = "checksum"


class Gone(StrEnum):
    """Why a donor that was visible no longer is, without anybody asking for it."""

    EVICTED = "evicted"
    CORRUPT = "corrupt"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class PutResult:
    """Whether the store will try to keep a donor. Visible it is only once its bytes are durable."""

    reason: StoreDecline | None = None
    """Why not; None when accepted."""

    @property
    def accepted(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True, eq=False)
class RecoveredDonor:
    """A donor found on disk after a restart, to be registered again."""

    namespace_digest: str
    donor_id: str
    tokens: int
    token_ids: TokenIds | None
    """None where the donor was stored without them."""
    born: int
    """When it was captured, in nanoseconds since 1970."""


class TransferFailedError(RuntimeError):
    """A load that did not deliver. The caller prefills normally and counts ``reason``."""

    def __init__(self, key: DonorKey, reason: StoreDecline) -> None:
        super().__init__(f"the KV of donor {key.donor_id!r} could not be loaded: {reason}")
        self.reason = reason


class TransferPendingError(RuntimeError):
    """A stream cannot wait for bytes that are still being read from disk."""


class StoreFaultError(Exception):
    """A tier could not take a donor; stays inside the store."""

    def __init__(self, reason: StoreDecline, detail: str = "") -> None:
        super().__init__(detail or str(reason))
        self.reason = reason


class LostDonorError(Exception):
    """Whoever held a donor has let it go without telling; stays inside the store."""


class CorruptDonorError(Exception):
    """A donor's files are not what was written; stays inside the store."""

    def __init__(self, reason: Quarantine, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class FormerDonorError(CorruptDonorError):
    """A donor of an earlier format, whose namespace says too little of its weights: removed, not kept aside."""
