"""Moving KV (extra ``gpu``: torch): rotation, relocation, the donor store, and the self-test by equal tokens."""

from semblend_core.kv.donor_kv import DonorKv, InvalidKvError, indexable
from semblend_core.kv.layout import PagedKv, Scales, narrow
from semblend_core.kv.learned_shift import HeadShare, KvShape, LearnedShift, find_learned_shift
from semblend_core.kv.mean_shift import MeanShiftCorrection
from semblend_core.kv.moves import Moves, SlotTable
from semblend_core.kv.paged_mean_shift import PagedMeanShift
from semblend_core.kv.pages import PageFolder
from semblend_core.kv.places import DeviceSlots
from semblend_core.kv.question_attention import QuestionAttention
from semblend_core.kv.relocation import relocate, relocate_spans
from semblend_core.kv.rotation import Rotation, UnsupportedRotationError, why_keys_do_not_move
from semblend_core.kv.rotation_proof import RotationProof
from semblend_core.kv.row_shift import middle_layer
from semblend_core.kv.store import (
    DonorStore,
    StoreDirectoryError,
    StoreOptions,
    Transfer,
)

__all__ = [
    "DeviceSlots",
    "DonorKv",
    "DonorStore",
    "HeadShare",
    "InvalidKvError",
    "KvShape",
    "LearnedShift",
    "MeanShiftCorrection",
    "Moves",
    "PageFolder",
    "PagedKv",
    "PagedMeanShift",
    "QuestionAttention",
    "Rotation",
    "RotationProof",
    "Scales",
    "SlotTable",
    "StoreDirectoryError",
    "StoreOptions",
    "Transfer",
    "UnsupportedRotationError",
    "find_learned_shift",
    "indexable",
    "middle_layer",
    "narrow",
    "relocate",
    "relocate_spans",
    "why_keys_do_not_move",
]
