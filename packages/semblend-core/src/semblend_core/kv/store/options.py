"""What the owner of a donor store decides."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from semblend_core.contract import tenant_of
from semblend_core.eviction import POLICY_NAMES
from semblend_core.kv.store.vocabulary import Tier
from semblend_core.settings import Settings

_GIB = 1024**3
RANK = "{rank}"
"""Stands for the tensor-parallel rank in a path."""
_SERVER = re.compile(r"(lm|redis)://[^\s/]+:\d{1,5}(/\S*)?")


class StoreOptionError(ValueError):
    """An option that the store cannot work with; names it and the fix."""


class StoreDirectoryError(StoreOptionError):
    """``disk_path`` cannot be used: not writable, or another process uses it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """Budgets and limits of one store. A tier with a budget of 0 bytes is switched off."""

    device_bytes: int = 0
    """KV kept in the engine's own memory, beside what the engine itself takes."""
    host_bytes: int = 4 * _GIB
    """Pinned host memory. Each tensor-parallel rank has a store of its own, so of this too."""
    disk_bytes: int = 0
    disk_path: str | os.PathLike[str] | None = None
    """Folder of the disk tier, for one process alone."""
    lmcache_bytes: int = 0
    """Donors that LMCache keeps for this store."""
    lmcache_url: str = ""
    """Server behind LMCache, ``lm://host:port`` or ``redis://host:port``; empty: LMCache's memory in this process."""
    lmcache_path: str | os.PathLike[str] | None = None
    """Folder that lists what LMCache holds, so that later processes find it; several may share it."""
    eviction: str = "priced_lru"
    queue_depth: int = 16
    """Donors that may wait for a tier; further ones are declined."""
    queue_bytes: int = 4 * _GIB
    """Bytes of the donors that wait for a tier. Until copied they stay where the engine left them."""
    host_slab_bytes: int = _GIB
    """Host memory is pinned in pieces of this; each layer of a donor lies in one of them. A power of two."""
    promote: bool = False
    """Copy a donor into the next faster tier after its use, in the background."""
    max_age_s: float | None = None
    """Donors older than this are not found, and dropped."""
    memory_only: tuple[str, ...] = ()
    """Tenants whose donors are never written to disk or given to LMCache; ``("all",)``: nobody's are."""
    quarantine_bytes: int = _GIB
    """Damaged files kept for inspection; the oldest go first."""

    def __post_init__(self) -> None:
        for name in ("device_bytes", "host_bytes", "disk_bytes", "lmcache_bytes", "quarantine_bytes"):
            self._whole(name, 0)
        for name in ("queue_depth", "queue_bytes"):
            self._whole(name, 1)
        self._whole("host_slab_bytes", 4096)
        if self.host_slab_bytes & (self.host_slab_bytes - 1):
            larger = 1 << self.host_slab_bytes.bit_length()
            raise StoreOptionError(f"host_slab_bytes={self.host_slab_bytes} is not a power of two; use {larger}")
        if self.eviction not in POLICY_NAMES:
            raise StoreOptionError(f"eviction={self.eviction!r} is not known; use one of {', '.join(POLICY_NAMES)}")
        if self.disk_bytes and not self.disk_path:
            raise StoreOptionError(
                "disk_bytes is set and disk_path is not: name a folder, or set disk_bytes to 0 "
                "(SEMBLEND_STORE_DISK_PATH, SEMBLEND_STORE_DISK_BYTES)"
            )
        if self.lmcache_url and not _SERVER.fullmatch(self.lmcache_url):
            raise StoreOptionError(
                f"lmcache_url={self.lmcache_url!r} is no server of LMCache's: use lm://host:port or redis://host:port, "
                "or leave it empty for memory of this process (SEMBLEND_STORE_LMCACHE_URL)"
            )
        if not self.tiers:
            raise StoreOptionError(
                "no tier has a budget: set device_bytes, host_bytes, lmcache_bytes, or disk_bytes with disk_path "
                "(SEMBLEND_STORE_DEVICE_BYTES, SEMBLEND_STORE_HOST_BYTES, "
                "SEMBLEND_STORE_LMCACHE_BYTES, SEMBLEND_STORE_DISK_BYTES, SEMBLEND_STORE_DISK_PATH)"
            )

    @classmethod
    def from_settings(cls, settings: Settings, *, rank: int = 0, ranks: int = 1, replica: int = 0) -> StoreOptions:
        """The options that ``SEMBLEND_STORE_*`` and ``SEMBLEND_EVICTION`` ask for, for one of an engine's processes.

        ``rank`` of ``ranks`` tensor-parallel ones, in the data-parallel ``replica``.
        """
        return cls(
            device_bytes=settings.store_device_bytes,
            host_bytes=settings.store_host_bytes,
            disk_bytes=settings.store_disk_bytes,
            disk_path=_own_folder(settings.store_disk_path, rank, ranks, replica) or None,
            lmcache_bytes=settings.store_lmcache_bytes,
            lmcache_url=settings.store_lmcache_url,
            lmcache_path=settings.store_lmcache_path.replace(RANK, str(rank)) or None,
            eviction=settings.eviction,
            queue_bytes=settings.store_queue_bytes,
            promote=settings.store_promote,
            max_age_s=settings.max_age_s,
            memory_only=settings.memory_only,
        )

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers that are switched on, the fastest first."""
        return tuple(tier for tier in Tier if self.limit_of(tier))

    def may_lie_in(self, tier: Tier, namespace_digest: str) -> bool:
        """Whether donors of this namespace may be kept there."""
        return tier in (Tier.DEVICE, Tier.HOST) or not {"all", tenant_of(namespace_digest)} & set(self.memory_only)

    def limit_of(self, tier: Tier) -> int:
        return {
            Tier.DEVICE: self.device_bytes,
            Tier.HOST: self.host_bytes,
            Tier.DISK: self.disk_bytes,
            Tier.LMCACHE: self.lmcache_bytes,
        }[tier]

    def _whole(self, name: str, low: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise StoreOptionError(f"{name}={value!r} is not allowed: give a whole number of at least {low}")


def _own_folder(path: str, rank: int, ranks: int, replica: int) -> str:
    """Where one process keeps its donors: in ``path`` itself while it is the only one, else in a folder in it.

    Names last, so that the process that takes the place after a restart finds what was left there.
    """
    if not path:
        return ""
    parts = [f"replica-{replica}"] if replica else []
    if ranks > 1 and RANK not in path:
        parts.append(f"rank-{rank}")
    return os.path.join(path.replace(RANK, str(rank)), *parts)
