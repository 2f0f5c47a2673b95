"""Requests that wait for donors on disk: a few at a time, and none for ever, so that the engine itself never waits."""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from semblend_core.contract import DeclineReason

LONGEST_WAIT_S = 2.0
"""What has not come by then is computed."""
MOST_AT_ONCE = 4
"""Requests whose donors are fetched at a time: what has come lies in the device's memory until it is loaded."""

Arrival: TypeAlias = Literal["there", "coming"] | DeclineReason
"""Whether donors can be loaded from now, or why they are waited for no longer."""


class DiskWaits:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """When each was first wanted; from its first fetch on, when that was sent."""
        self._sent: set[str] = set()

    def may_fetch(self, request_id: str) -> bool:
        """Whether its donors may be fetched now. If so it counts from now on, until ``end``."""
        self._since.setdefault(request_id, time.monotonic())
        if request_id in self._sent:
            return True
        if len(self._sent) >= MOST_AT_ONCE:
            return False
        self._sent.add(request_id)
        self._since[request_id] = time.monotonic()  # The wait for others' fetches is not the disk's fault.
        return True

    def coming(self, request_id: str) -> Arrival:
        """``coming``, or why that took too long."""
        if time.monotonic() - self._since.get(request_id, time.monotonic()) <= LONGEST_WAIT_S:
            return "coming"
        return DeclineReason.LOAD_FAILED if request_id in self._sent else DeclineReason.ALLOCATION_FAILED

    def end(self, request_id: str) -> bool:
        """Nobody waits any longer. Whether a fetch was sent."""
        self._since.pop(request_id, None)
        sent = request_id in self._sent
        self._sent.discard(request_id)
        return sent
