"""Moving KV (extra ``gpu``: torch): rotation, relocation, the donor store and the per-model self-test."""

from semblend_core.kv.donor_kv import DonorKv, InvalidKvError
from semblend_core.kv.layout import PagedKv
from semblend_core.kv.mean_shift import MeanShiftCorrection
from semblend_core.kv.moves import Moves, SlotTable, UploadedMoves
from semblend_core.kv.paged_mean_shift import PagedMeanShift
from semblend_core.kv.relocation import relocate, relocate_uploaded
from semblend_core.kv.rotation import Rotation, UnsupportedRotationError
from semblend_core.kv.rotation_proof import RotationProof
from semblend_core.kv.self_test import SelfTestSubject, run_self_test
from semblend_core.kv.self_test_cache import SelfTestCache
from semblend_core.kv.self_test_report import SelfTestIdentity, SelfTestReport
from semblend_core.kv.span_relocation import relocate_spans
from semblend_core.kv.store import (
    DonorKey,
    DonorStore,
    Gone,
    Miss,
    PutResult,
    Quarantine,
    RecoveredDonor,
    StoreDecline,
    StoreDirectoryError,
    StoredKv,
    StoreOptionError,
    StoreOptions,
    StoreStats,
    Tier,
    TierStats,
    Transfer,
    TransferFailedError,
    TransferPendingError,
)

__all__ = [
    "DonorKey",
    "DonorKv",
    "DonorStore",
    "Gone",
    "InvalidKvError",
    "MeanShiftCorrection",
    "Miss",
    "Moves",
    "PagedKv",
    "PagedMeanShift",
    "PutResult",
    "Quarantine",
    "RecoveredDonor",
    "Rotation",
    "RotationProof",
    "SelfTestCache",
    "SelfTestIdentity",
    "SelfTestReport",
    "SelfTestSubject",
    "SlotTable",
    "StoreDecline",
    "StoreDirectoryError",
    "StoreOptionError",
    "StoreOptions",
    "StoreStats",
    "StoredKv",
    "Tier",
    "TierStats",
    "Transfer",
    "TransferFailedError",
    "TransferPendingError",
    "UnsupportedRotationError",
    "UploadedMoves",
    "relocate",
    "relocate_spans",
    "relocate_uploaded",
    "run_self_test",
]
