"""Donors' KV in core's store, so that they can be used after the exact tree has evicted them. Off by default."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from semblend_core.contract import Namespace, TokenIds
from semblend_core.kv import DonorKv, DonorStore, StoreOptions
from semblend_core.kv.recovery import LeftDonor, recover_in_background
from semblend_core.kv.store import Tier

logger = logging.getLogger(__name__)


class KeptDonors:
    """The store copies on threads and streams of its own."""

    def __init__(self, options: StoreOptions) -> None:
        self.store = DonorStore(options)
        self.has_disk = not {Tier.DISK, Tier.LMCACHE}.isdisjoint(options.tiers)
        """Or another place that takes long to read from."""
        self.left: deque[LeftDonor] = deque()
        """What an earlier process left, as it is found."""
        self._recovery = recover_in_background(self.store, self.left.extend) if self.has_disk else None

    def keep(
        self,
        namespace: Namespace,
        donor_id: str,
        token_ids: TokenIds,
        nbytes: int,
        take: Callable[[], DonorKv],
        saved_ms: float = 0.0,
    ) -> bool:
        """Best effort: what finds no room is a donor only as long as the tree holds it. Whether it is kept."""
        if not self.store.has_room_for(nbytes):
            return False
        result = self.store.put(namespace, donor_id, take(), token_ids=token_ids, give=True, saved_ms=saved_ms)
        if not result.accepted:
            logger.debug("the KV of a donor is not kept: %s", result.reason)
        return result.accepted

    @property
    def most_bytes(self) -> int:
        """That can be kept, in all tiers together."""
        return sum(self.store.options.limit_of(tier) for tier in self.store.options.tiers)

    @property
    def knows_what_was_left(self) -> bool:
        """Whether all that an earlier process left was found by now."""
        return self._recovery is None or not self._recovery.is_alive()

    def flush(self) -> None:
        """Wait for captures under way, and for what is looked for on disk. Tests only."""
        if self._recovery is not None:
            self._recovery.join()
        self.store.flush()

    def close(self) -> None:
        self.store.close()
