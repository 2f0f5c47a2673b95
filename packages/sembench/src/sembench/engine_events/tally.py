"""Events counted into a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sembench.engine_events.event import Event
from sembench.engine_events.tries import fold_tries
from sembench.schema import EngineRequest, EngineSummary

MAX_SAMPLES = 10

_COUNTED = {
    "donor_captured": "donors_captured",
    "donor_registered": "donors_registered",
    "lookup": "lookups",
    "plan": "plans",
    "load_advertised": "loads_advertised",
    "materialized": "materialization_events",
    "alias": "alias_events",
    "regretted": "regretted_donors",
    "evicted": "evicted_donors",
}
_SUMMED = {
    "load_advertised": "advertised_tokens",
    "materialized": "materialized_tokens",
    "alias": "alias_tokens",
    "regretted": "regretted_tokens",
    "exact_retrieved": "exact_retrieved_tokens",
    "stored": "stored_tokens",
}
_NO_OUTCOME_YET = "waiting"
_NO_COUNT = "landed, and nobody said how much"
_Try = tuple[str, str | None, int]
"""A client's id, the engine's own, and which of the files told of it."""


class EventTally:
    """Adds up. ``materialized`` alone makes confirmed tokens."""

    def __init__(self) -> None:
        self.recognised = 0
        self._counts: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()
        self._bytes: list[int | None] = []
        self._declined: Counter[str] = Counter()
        self._evicted: Counter[str] = Counter()
        self._others: Counter[str] = Counter()
        self._errors: list[str] = []
        self._error_count = 0
        self._times: list[float] = []
        self.source = 0
        """Which of the files is being read."""
        self._tries: dict[_Try, EngineRequest] = {}
        self._landings: Counter[_Try] = Counter()
        self.unnamed_landings = 0
        """Of events that name no request."""
        self._donor_requests: list[str] = []
        self._state: dict[_Try, str] = {}

    def add(self, event: Event) -> None:
        self.recognised += 1
        if event.kind == "materialized" and event.tokens == 0:
            event = replace(event, kind="declined", reason="nothing_materialized")
        if event.time is not None:
            self.saw_time(event.time)
        if event.kind in _COUNTED:
            self._counts[_COUNTED[event.kind]] += 1
        if event.kind in _SUMMED:
            self._sum(_SUMMED[event.kind], event.tokens)
        match event.kind:
            case "lookup":
                self._counts["lookup_hits"] += event.found is True
            case "materialized":
                self._bytes.append(event.bytes)
            case "declined":
                self._declined[event.reason or "unknown"] += 1
            case "evicted":
                self._evicted[event.reason or "unknown"] += 1
            case "error":
                self.add_error(event.reason or "error")
            case "other":
                self._others[event.reason or "unknown"] += 1
        if event.request_id is not None and event.kind == "donor_registered":
            self._donor_requests.append(event.request_id)
        elif event.request_id is not None:
            self._of_request((event.request_id, event.engine_id, self.source), event)
        else:
            self.unnamed_landings += event.kind == "materialized"

    def add_error(self, sample: str) -> None:
        self._error_count += 1
        if len(self._errors) < MAX_SAMPLES:
            self._errors.append(sample)

    def take_errors(self, other: EventTally) -> None:
        """Errors in the text around an audit stream count with those in it."""
        self._error_count += other._error_count
        self._errors = [*self._errors, *other._errors][:MAX_SAMPLES]

    def saw_time(self, time: float) -> None:
        self._times = [min([*self._times, time]), max([*self._times, time])]

    def _sum(self, name: str, tokens: int | None) -> None:
        if tokens is None:
            self._unknown[name] += 1
        else:
            self._counts[name] += tokens

    def _of_request(self, request_id: _Try, event: Event) -> None:
        request = self._tries.setdefault(request_id, EngineRequest())
        match event.kind:
            case "lookup":
                request.spans = event.spans if event.spans is not None else request.spans
                request.lookup_us = event.lookup_us if event.lookup_us is not None else request.lookup_us
                request.reason = event.reason
                self._state[request_id] = _NO_OUTCOME_YET if event.found else "ended"
            case "plan":
                request.reason = event.reason or request.reason
                self._state[request_id] = "ended" if event.reason else _NO_OUTCOME_YET
            case "load_advertised":
                request.spans = event.spans if event.spans is not None else request.spans
                request.advertised_tokens = (request.advertised_tokens or 0) + (event.tokens or 0)
                self._state[request_id] = _NO_OUTCOME_YET
            case "declined":
                request.reason = event.reason
                self._state[request_id] = "ended"
            case "alias":
                request.alias_tokens = (request.alias_tokens or 0) + (event.tokens or 0)
                self._state[request_id] = "ended"
            case "materialized" if event.tokens is None:
                self._state[request_id] = _NO_COUNT
            case "materialized":
                self._landings[request_id] += 1
                request.confirmed_tokens = (request.confirmed_tokens or 0) + (event.tokens or 0)

    def _settle_requests(self, outcomes_are_told: bool) -> None:
        """A request whose events are here and tell of nothing that landed has 0 confirmed tokens.

        Where the format tells how each request ended, one that has not ended yet stays unknown.
        """
        for name, request in self._tries.items():
            waiting = outcomes_are_told and self._state.get(name) == _NO_OUTCOME_YET
            if request.confirmed_tokens is None and not waiting and self._state.get(name) != _NO_COUNT:
                request.confirmed_tokens = 0

    def _fold_requests(self) -> dict[str, EngineRequest]:
        tries: dict[str, list[EngineRequest]] = {}
        for (request_id, _, _), request in self._tries.items():
            tries.setdefault(request_id, []).append(request)
        return {request_id: fold_tries(each) for request_id, each in tries.items()}

    def _told_twice(self) -> tuple[int, int]:
        """Landings and their tokens that another file has told of: two ranks, or two logs that overlap."""
        by_engine: dict[tuple[str, str | None], list[_Try]] = {}
        for name in self._landings:
            by_engine.setdefault(name[:2], []).append(name)
        landings = tokens = 0
        for several in by_engine.values():
            counts = [(self._tries[name].confirmed_tokens or 0, self._landings[name]) for name in several]
            least = min(counts)
            tokens += sum(count for count, _ in counts) - least[0]
            landings += sum(count for _, count in counts) - least[1]
        return landings, tokens

    def summary(
        self,
        engine: str,
        inputs: Iterable[str],
        *,
        lines: int,
        unparsed: int,
        torn: list[str],
        tells: frozenset[str],
        outcomes_are_told: bool,
        extra: dict[str, Any],
    ) -> EngineSummary:
        """``tells``: the counts that are 0 where no event raised them; all others stay None."""
        if "materialization_events" in tells:
            self._settle_requests(outcomes_are_told)
        figures: dict[str, Any] = {name: self._counts[name] for name in tells}
        landings, tokens = self._told_twice()
        if landings and "materialization_events" in tells:
            figures["materialization_events"] -= landings
            figures["materialized_tokens"] -= tokens
            extra = {**extra, "landings_told_twice": landings}
        if self.unnamed_landings:
            extra = {**extra, "events_without_request": self.unnamed_landings}
        for name, missing in self._unknown.items():
            extra = {**extra, f"{name}_not_stated": missing}
            if name in tells and not self._counts[name]:
                figures[name] = None
        if "materialized_bytes" in tells:
            known = [size for size in self._bytes if size is not None]
            figures["materialized_bytes"] = sum(known) if len(known) == len(self._bytes) else None
        return EngineSummary(
            engine=engine,
            inputs=list(inputs),
            lines=lines,
            unparsed_lines=unparsed,
            torn_lines=torn,
            declined=dict(sorted(self._declined.items())),
            evicted=dict(sorted(self._evicted.items())),
            errors=self._error_count,
            error_samples=self._errors,
            first_time=self._times[0] if self._times else None,
            last_time=self._times[-1] if self._times else None,
            requests=self._fold_requests(),
            donor_requests=list(dict.fromkeys(self._donor_requests)),
            extra={**extra, **({"other_events": dict(sorted(self._others.items()))} if self._others else {})},
            **figures,
        )
