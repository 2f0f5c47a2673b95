"""Donors' KV in core's store, so that they can be used after the exact tree has evicted them. Off by default."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from semblend_core import Span, TokenIds, joined_runs
from semblend_core.kv import DonorKv, DonorStore, StoreOptions, Transfer, TransferPendingError
from semblend_sglang.claims import Run
from semblend_sglang.donors import Donor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fetch:
    """Spans of one donor on their way from the store."""

    transfer: Transfer
    ranges: list[Run]
    """Which of the donor's tokens each part holds."""
    spans: list[Span]

    def parts(self) -> list[tuple[DonorKv, list[Span]]]:
        """The KV in order on the current stream, each with the spans it holds; waits only for what is on disk."""
        return [
            (part, [span for span in self.spans if start <= span.donor_start and span.donor_end <= end])
            for (start, end), part in zip(self.ranges, _brought(self.transfer), strict=True)
        ]


class KeptDonors:
    """The store copies on threads and streams of its own."""

    def __init__(self, options: StoreOptions) -> None:
        self._store = DonorStore(options)

    def keep(self, donor: Donor, token_ids: TokenIds, kv: DonorKv) -> None:
        """Best effort: what finds no room is a donor only as long as the tree holds it."""
        try:
            result = self._store.put(donor.namespace, donor.donor_id, kv, token_ids=token_ids)
        except Exception:
            logger.exception("the KV of %s is not kept", donor.donor_id)
            return
        if not result.accepted:
            logger.debug("the KV of %s is not kept: %s", donor.donor_id, result.reason)

    def holds(self, donor: Donor) -> bool:
        return self._store.contains(donor.namespace, donor.donor_id)

    def fetch(self, donor: Donor, spans: list[Span]) -> Fetch | None:
        """Set the KV of ``spans`` on its way; None where the donor is gone."""
        handle = self._store.acquire(donor.namespace, donor.donor_id)
        if handle is None:
            return None
        with handle:
            ranges = joined_runs((span.donor_start, span.donor_end) for span in spans)
            if str(handle.tier) == "device":  # A view costs nothing, so one part serves all spans.
                ranges = [(ranges[0][0], ranges[-1][1])]
            return Fetch(self._store.load(handle, ranges), ranges, spans)

    def forget(self, donor: Donor) -> None:
        self._store.forget(donor.namespace, donor.donor_id)

    def flush(self) -> None:
        """Wait for captures under way. Tests only."""
        self._store.flush()

    def close(self) -> None:
        self._store.close()


def _brought(transfer: Transfer) -> tuple[DonorKv, ...]:
    if torch.cuda.is_available():
        try:
            transfer.wait_on_stream()
            return transfer.parts
        except TransferPendingError:
            pass
    return transfer.result()
