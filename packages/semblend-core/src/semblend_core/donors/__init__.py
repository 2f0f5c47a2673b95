"""Donors: the registry with its budgets and pins, eviction policies and snapshots."""

from semblend_core.donors.eviction import POLICIES, EvictionPolicy, LeastFrequentlyUsed, LeastRecentlyUsed
from semblend_core.donors.registry import DonorRecord, DonorRegistry
from semblend_core.donors.snapshot import SnapshotError, restore_snapshot, save_snapshot

__all__ = [
    "POLICIES",
    "DonorRecord",
    "DonorRegistry",
    "EvictionPolicy",
    "LeastFrequentlyUsed",
    "LeastRecentlyUsed",
    "SnapshotError",
    "restore_snapshot",
    "save_snapshot",
]
