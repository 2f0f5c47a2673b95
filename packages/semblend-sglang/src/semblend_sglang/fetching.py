"""Donors' KV on its way from core's store."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from semblend_core import DeclineReason, Span
from semblend_core.kv import DonorKv, StoreDecline, Transfer
from semblend_sglang.claims import Claim, Run

LONGEST_WAIT_S = 2.0
"""What has not come from disk by then is computed."""
LONGEST_COPY_S = 5.0
"""Without a device, copies from memory are made by a thread; this is for the largest."""


@dataclass(frozen=True)
class Fetch:
    """Spans of one donor on their way from the store."""

    transfer: Transfer
    ranges: list[Run]
    """Which of the donor's tokens each part holds."""
    spans: list[Span]

    def parts(self) -> list[tuple[DonorKv, list[Span]]]:
        """The KV in order on the current stream, each with the spans it holds. What is still on disk is an error."""
        return [
            (part, [span for span in self.spans if start <= span.donor_start and span.donor_end <= end])
            for (start, end), part in zip(self.ranges, _brought(self.transfer), strict=True)
        ]


@dataclass(eq=False)
class Coming:
    """Donors on disk, fetched while their request waits, so that the engine itself never waits for a disk."""

    claim: Claim
    since: float = field(default_factory=time.monotonic)
    """When it was first wanted; from the first fetch on, when that was sent."""
    fetches: dict[str, Fetch] = field(default_factory=dict)
    """By donor."""

    def add(self, donor_id: str, fetch: Fetch) -> None:
        if not self.fetches:
            self.since = time.monotonic()  # The wait for others' fetches is not the disk's fault.
        self.fetches[donor_id] = fetch

    @property
    def done(self) -> bool:
        return all(fetch.transfer.done() for fetch in self.fetches.values())

    @property
    def late(self) -> DeclineReason | None:
        """Why it is waited for no longer."""
        if time.monotonic() - self.since <= LONGEST_WAIT_S:
            return None
        return DeclineReason.LOAD_FAILED if self.fetches else DeclineReason.ALLOCATION_FAILED

    @property
    def failed(self) -> DeclineReason | None:
        failures = [each.transfer.failed for each in self.fetches.values() if each.transfer.failed is not None]
        if not failures:
            return None
        corrupt = StoreDecline.CORRUPT in failures
        return DeclineReason.DONOR_CORRUPT if corrupt else DeclineReason.LOAD_FAILED


def _brought(transfer: Transfer) -> tuple[DonorKv, ...]:
    if torch.cuda.is_available():
        transfer.wait_on_stream()
        return transfer.parts
    return transfer.result(LONGEST_COPY_S)
