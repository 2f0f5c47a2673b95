"""Donors' KV on its way from the store to where the engine computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from semblend_core.contract import DeclineReason, Namespace, Span, TokenIds, joined_runs
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store import DonorStore, StoreDecline, Tier, Transfer, TransferFailedError

LONGEST_COPY_S = 5.0
"""Without a device, copies from memory are made by a thread; this is for the largest."""


@dataclass(frozen=True)
class DonorFetch:
    """Spans of one donor on their way."""

    transfer: Transfer
    ranges: Sequence[tuple[int, int]]
    """Which of the donor's tokens each part holds."""
    spans: Sequence[Span]
    tier: Tier = Tier.HOST
    """Where its KV lay when this began."""
    token_ids: TokenIds | None = None
    """Of the whole donor, where the store knows them."""

    def arrive(self) -> DeclineReason | None:
        """Wait until nothing but the device can keep it from landing: why it will not. Never for a disk or a server."""
        if self.tier in (Tier.DISK, Tier.LMCACHE) and not self.transfer.done():
            return DeclineReason.DONOR_ON_DISK
        if not torch.cuda.is_available():
            try:
                self.transfer.result(LONGEST_COPY_S)
            except (TransferFailedError, TimeoutError):
                return load_failure([self.transfer.failed]) or DeclineReason.LOAD_FAILED
        if self.transfer.issued:
            return None
        return load_failure([self.transfer.failed]) or DeclineReason.LOAD_FAILED

    def parts(self) -> list[tuple[DonorKv, list[Span]]]:
        """The KV in order on the current stream, each with the spans it holds. What is still on disk is an error."""
        return [
            (part, [span for span in self.spans if start <= span.donor_start and span.donor_end <= end])
            for (start, end), part in zip(self.ranges, self._landed(), strict=True)
        ]

    def _landed(self) -> tuple[DonorKv, ...]:
        if torch.cuda.is_available():
            self.transfer.wait_on_stream()
            return self.transfer.parts
        return self.transfer.result(LONGEST_COPY_S)


@dataclass
class RequestFetch:
    """All that one request is to be loaded from. Whoever drops it has given it up: the store lets go by itself."""

    donors: dict[str, DonorFetch] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Landed or failed."""
        return all(fetch.transfer.done() for fetch in self.donors.values())

    @property
    def failed(self) -> DeclineReason | None:
        return load_failure(fetch.transfer.failed for fetch in self.donors.values())


def fetch_donor(store: DonorStore, namespace: Namespace, donor_id: str, spans: Sequence[Span]) -> DonorFetch | None:
    """Set the KV of ``spans`` on its way; None where the donor is gone."""
    handle = store.acquire(namespace, donor_id)
    if handle is None:
        return None
    with handle:  # A load under way pins its copy by itself.
        ranges = joined_runs((span.donor_start, span.donor_end) for span in spans)
        if handle.tier is Tier.DEVICE:  # A view costs nothing, so one part serves all spans.
            ranges = [(ranges[0][0], ranges[-1][1])]
        return DonorFetch(store.load(handle, ranges), ranges, spans, handle.tier, handle.token_ids)


def load_failure(reasons: Iterable[StoreDecline | None]) -> DeclineReason | None:
    """Why a load failed, in the words of outcomes; None where it did not."""
    failures = [reason for reason in reasons if reason is not None]
    if not failures:
        return None
    return DeclineReason.DONOR_CORRUPT if StoreDecline.CORRUPT in failures else DeclineReason.LOAD_FAILED
