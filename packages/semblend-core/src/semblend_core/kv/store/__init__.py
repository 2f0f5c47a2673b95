"""The donor store: finished requests' KV in device memory, pinned host memory and crash-safe files."""

from semblend_core.kv.store.handle import StoredKv
from semblend_core.kv.store.options import StoreDirectoryError, StoreOptions
from semblend_core.kv.store.store import DonorStore
from semblend_core.kv.store.transfers import Transfer
from semblend_core.kv.store.vocabulary import (
    DonorKey,
    Gone,
    StoreDecline,
    Tier,
    TransferFailedError,
    TransferPendingError,
)

__all__ = [
    "DonorKey",
    "DonorStore",
    "Gone",
    "StoreDecline",
    "StoreDirectoryError",
    "StoreOptions",
    "StoredKv",
    "Tier",
    "Transfer",
    "TransferFailedError",
    "TransferPendingError",
]
