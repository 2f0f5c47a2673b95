"""What was loaded for admitted requests, until its bytes are there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from semblend_core import DeclineReason
from semblend_core.serving import Claim, Rows, Stage
from semblend_core.serving.tree import Load
from semblend_sglang.scheduler.requests import SglangLife, SglangRequests


class Landing:
    def __init__(self, requests: SglangRequests, token_bytes: int, *, wait: bool = False) -> None:
        """``wait``: for the device, where others wait too and all must find the same."""
        self._requests, self._token_bytes, self._wait = requests, token_bytes, wait
        self.loads: dict[SglangLife, Load] = {}
        """Of admitted requests that no forward has seen yet."""
        self.started: dict[str, Load] = {}
        """By request, of the batch that was computed last."""
        self._on_their_way: list[tuple[SglangLife, Load]] = []

    def of(self, request: Any) -> Load | None:
        """What was loaded for an admitted request that no forward has seen yet."""
        life = self._requests.of_request(request)
        return None if life is None else self.loads.get(life)

    def rows(self) -> int:
        """Sequences that requests of the batch under way have besides their own."""
        return sum(len(loaded.claim.rows) for loaded in self.loads.values())

    def settle(self, request: Any, claim: Claim, probed: Rows) -> Load:
        """A probe has chosen the rows of ``claim``, or none could: what was loaded stands, and this is computed."""
        life = self._requests.of_request(request)
        assert life is not None
        life.claim = claim
        self.loads[life] = settled = replace(self.loads[life], claim=claim, probed=probed)
        return settled

    def take(self, request: Any) -> tuple[SglangLife, Load] | None:
        """A forward is made for the request: what was loaded for it, which is not waited for from here on."""
        life = self._requests.of_request(request)
        loaded = None if life is None else self.loads.pop(life, None)
        return None if life is None or loaded is None else (life, loaded)

    def start(self, request: Any) -> None:
        """A forward computes its rows: it is reported when they are computed and the rest has arrived."""
        taken = self.take(request)
        if taken is not None:
            self.started[request.rid] = taken[1]
            self._on_their_way.append(taken)

    def forward_ended(self, *, corrected: bool) -> None:
        """Rows were computed. ``corrected``: and what was moved beside them is what their claims count on."""
        if not corrected:
            in_vain = {id(load) for load in self.started.values() if load.claim.correction is not None}
            for life, load in self._on_their_way:
                if id(load) in in_vain:
                    self._decline(life, DeclineReason.LOAD_FAILED)
            self._on_their_way = [each for each in self._on_their_way if id(each[1]) not in in_vain]
        if not self._wait:
            self.confirm()

    def fail(self, request: Any, reason: DeclineReason) -> None:
        """No forward could be made with its rows: the request computes its claim.

        Its memory stays marked, so that nothing of it is kept: SGLang was told of a longer prefix.
        """
        taken = self.take(request)
        if taken is not None:
            self._decline(taken[0], reason)

    def confirm(self) -> None:
        """Report what has arrived by now."""
        waiting = []
        for life, loaded in self._on_their_way:
            if loaded.done is not None and self._wait:
                loaded.done.synchronize()
            elif loaded.done is not None and not loaded.done.query():
                waiting.append((life, loaded))
                continue
            moved = loaded.claim.reused_tokens
            in_place = 0 if life.in_place is None else life.in_place.length
            self._requests.confirm(life, in_place + moved, moved * self._token_bytes)
        self._on_their_way = waiting

    def _decline(self, life: SglangLife, reason: DeclineReason) -> None:
        self._requests.decline(life, reason)
        self._requests.compute(life)

    def check_integrity(self) -> None:
        for life in self.loads:
            assert self._requests.of_request(life.request) is life, "a load is ordered for a request that is gone"
            assert life.stage is Stage.LOADING, f"a load is ordered for a request that is {life.stage}"
            assert life.is_approximate, "relocated KV without the mark that keeps it out of the tree"
