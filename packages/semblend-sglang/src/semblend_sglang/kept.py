"""Donors' KV in core's store, so that they can be used after the exact tree has evicted them. Off by default."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator

from semblend_core import Span, TokenIds, joined_runs
from semblend_core.kv import DonorKv, DonorStore, StoreOptions, Tier
from semblend_sglang.donors import Donor
from semblend_sglang.fetching import Coming, Fetch

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 4
"""Requests whose donors are fetched at a time: what has come lies in the device's memory until it is loaded."""


class KeptDonors:
    """The store copies on threads and streams of its own."""

    def __init__(self, options: StoreOptions) -> None:
        self._store = DonorStore(options)
        self._coming: weakref.WeakSet[Coming] = weakref.WeakSet()
        self._found: deque[tuple[str, str, TokenIds]] = deque()
        self.has_disk = Tier.DISK in options.tiers
        self._recovery = threading.Thread(target=self._recover, name="semblend-recovery", daemon=True)
        if self.has_disk:
            self._recovery.start()

    def keep(self, donor: Donor, token_ids: TokenIds, nbytes: int, take: Callable[[], DonorKv]) -> None:
        """Best effort: what finds no room is a donor only as long as the tree holds it."""
        try:
            if not self._store.has_room_for(nbytes):
                return
            result = self._store.put(donor.namespace, donor.donor_id, take(), token_ids=token_ids, give=True)
        except Exception:
            logger.exception("the KV of %s is not kept", donor.donor_id)
            return
        if not result.accepted:
            logger.debug("the KV of %s is not kept: %s", donor.donor_id, result.reason)

    def left_by_earlier_process(self) -> Iterator[tuple[str, str, TokenIds]]:
        """Digest of the namespace, donor id and tokens of what was found on disk since the last question."""
        while self._found:
            yield self._found.popleft()

    def holds(self, donor: Donor) -> bool:
        return self._store.contains(donor.namespace, donor.donor_id)

    def only_on_disk(self, donor: Donor) -> bool:
        return self._store.tier_of(donor.namespace, donor.donor_id) is Tier.DISK

    def may_fetch(self, coming: Coming) -> bool:
        """Whether one more request's donors may be fetched from disk; if so they count from now on."""
        if coming not in self._coming and len(self._coming) >= MOST_AT_ONCE:
            return False
        self._coming.add(coming)
        return True

    def fetch(self, donor: Donor, spans: list[Span]) -> Fetch | None:
        """Set the KV of ``spans`` on its way; None where the donor is gone."""
        handle = self._store.acquire(donor.namespace, donor.donor_id)
        if handle is None:
            return None
        with handle:
            ranges = joined_runs((span.donor_start, span.donor_end) for span in spans)
            if handle.tier is Tier.DEVICE:  # A view costs nothing, so one part serves all spans.
                ranges = [(ranges[0][0], ranges[-1][1])]
            return Fetch(self._store.load(handle, ranges), ranges, spans)

    def forget(self, donor: Donor) -> None:
        self._store.forget(donor.namespace, donor.donor_id)

    def flush(self) -> None:
        """Wait for captures under way, and for what is looked for on disk. Tests only."""
        if self.has_disk:
            self._recovery.join()
        self._store.flush()

    def close(self) -> None:
        self._store.close()

    def _recover(self) -> None:
        try:
            found = self._store.recover()
        except Exception:
            logger.exception("what an earlier process left on disk is not found")
            return
        self._found.extend(
            (donor.namespace_digest, donor.donor_id, donor.token_ids) for donor in found if donor.token_ids is not None
        )
