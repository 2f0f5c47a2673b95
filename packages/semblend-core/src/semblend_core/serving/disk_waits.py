"""Requests that wait for donors on disk or on a server: a few at a time, and none for longer than that pays."""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from semblend_core.contract import DeclineReason
from semblend_core.serving.cost_gate import CostGate

LONGEST_WAIT_S = 2.0
"""What has not come by then is computed."""
MOST_AT_ONCE = 4
"""Requests whose donors are fetched at a time: what has come lies in the device's memory until it is loaded."""

Arrival: TypeAlias = Literal["there", "coming"] | DeclineReason
"""Whether donors can be loaded from now, or why they are waited for no longer."""


class DiskWaits:
    def __init__(self, costs: CostGate | None = None) -> None:
        """``costs``: says how long a wait pays, and learns how long they are."""
        self._costs = costs
        self._since: dict[str, float] = {}
        """When each was first wanted; from its first fetch on, when that was sent."""
        self._sent: set[str] = set()
        self._held_up: dict[str, float] = {}
        """Since when each could have been computed."""
        self._told: set[str] = set()

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

    def coming(self, request_id: str, tokens: int, *, its_turn: bool) -> Arrival:
        """``coming``, or why that took too long. ``its_turn``: it is held up, and would be computed otherwise."""
        now = time.monotonic()
        in_time = now - self._since.get(request_id, now) <= LONGEST_WAIT_S
        if request_id not in self._sent:
            return "coming" if in_time else DeclineReason.ALLOCATION_FAILED
        held_up = now - self._held_up.setdefault(request_id, now) if its_turn else 0.0
        if in_time and (self._costs is None or held_up <= self._costs.may_wait_s(request_id)):
            return "coming"
        self._tell(request_id, tokens)
        return DeclineReason.LOAD_FAILED

    def came(self, request_id: str, tokens: int) -> None:
        """It is its turn, and all is there."""
        if request_id in self._sent:
            self._tell(request_id, tokens)

    def end(self, request_id: str) -> bool:
        """Nobody waits any longer. Whether a fetch was sent."""
        self._since.pop(request_id, None)
        self._held_up.pop(request_id, None)
        self._told.discard(request_id)
        sent = request_id in self._sent
        self._sent.discard(request_id)
        return sent

    def _tell(self, request_id: str, tokens: int) -> None:
        if self._costs is None or request_id in self._told:
            return
        self._told.add(request_id)
        now = time.monotonic()
        self._costs.waited(request_id, tokens, now - self._held_up.get(request_id, now))
