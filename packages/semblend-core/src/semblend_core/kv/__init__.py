"""Moving KV (extra ``gpu``: torch): rotation, relocation, the donor store, and the self-test by equal tokens."""

from semblend_core.kv.donor_kv import DonorKv, InvalidKvError
from semblend_core.kv.fetching import DonorFetch, RequestFetch, fetch_donor, load_failure
from semblend_core.kv.layout import PagedKv
from semblend_core.kv.mean_shift import MeanShiftCorrection
from semblend_core.kv.moves import Moves, SlotTable
from semblend_core.kv.paged_mean_shift import PagedMeanShift
from semblend_core.kv.pages import PageFolder
from semblend_core.kv.pool import KvPool
from semblend_core.kv.recovery import LeftDonor, recover_in_background
from semblend_core.kv.relocation import relocate, relocate_spans
from semblend_core.kv.rotation import Rotation, UnsupportedRotationError, why_keys_do_not_move
from semblend_core.kv.rotation_proof import RotationProof
from semblend_core.kv.store import (
    DonorKey,
    DonorStore,
    Gone,
    StoreDecline,
    StoreDirectoryError,
    StoreOptions,
    Tier,
    Transfer,
    TransferFailedError,
    TransferPendingError,
)

__all__ = [
    "DonorFetch",
    "DonorKey",
    "DonorKv",
    "DonorStore",
    "Gone",
    "InvalidKvError",
    "KvPool",
    "LeftDonor",
    "MeanShiftCorrection",
    "Moves",
    "PageFolder",
    "PagedKv",
    "PagedMeanShift",
    "RequestFetch",
    "Rotation",
    "RotationProof",
    "SlotTable",
    "StoreDecline",
    "StoreDirectoryError",
    "StoreOptions",
    "Tier",
    "Transfer",
    "TransferFailedError",
    "TransferPendingError",
    "UnsupportedRotationError",
    "fetch_donor",
    "load_failure",
    "recover_in_background",
    "relocate",
    "relocate_spans",
    "why_keys_do_not_move",
]
