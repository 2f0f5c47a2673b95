"""The tiers of a donor store, opened by its options, and the device that they serve."""

from __future__ import annotations

import torch

from semblend_core.kv.store.directory import StoreDirectory, Sync
from semblend_core.kv.store.disk_tier import DiskTier
from semblend_core.kv.store.lmcache_tier import LmcacheTier
from semblend_core.kv.store.memory_tiers import DeviceTier, HostTier
from semblend_core.kv.store.options import StoreOptions
from semblend_core.kv.store.tier import StorageTier
from semblend_core.kv.store.vocabulary import Tier


def open_tiers(options: StoreOptions, device: torch.device, sync: Sync) -> dict[Tier, StorageTier]:
    """The fastest first."""
    return {tier: _open_tier(tier, options, device, sync) for tier in options.tiers}


def device_of(device: torch.device | str | None) -> torch.device:
    """With its number; None: the current CUDA device, or the CPU without one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return chosen


def _open_tier(tier: Tier, options: StoreOptions, device: torch.device, sync: Sync) -> StorageTier:
    if tier is Tier.DEVICE:
        return DeviceTier(device)
    if tier is Tier.HOST:
        return HostTier(options.host_bytes, options.host_slab_bytes, device)
    if tier is Tier.LMCACHE:
        return LmcacheTier(options, device)
    assert options.disk_path is not None
    return DiskTier(StoreDirectory(options.disk_path, options.quarantine_bytes, sync), device)
