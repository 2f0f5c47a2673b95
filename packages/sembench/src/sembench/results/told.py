"""One engine summary, as far as it tells of a run."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from sembench.engine_events.tries import fold_tries
from sembench.results.request_ids import find_sent_id, prepares, run_and_item
from sembench.results.routes import worker_of
from sembench.schema import EngineRequest, EngineSummary, RequestRecord, Result

_SILENT_FORMATS = ("vllm", "sglang")
"""Text logs that tell of what was found and landed, and not of requests for which nothing was."""
_COUNTING_FORMATS = ("trtllm",)
"""Their ids of requests are numbers of their own."""
_SLACK_S = 1.0
"""Clocks differ, and a run's times are whole seconds."""


class Told:
    """What a summary says of this run's requests, and whether it is of this run at all."""

    def __init__(self, summary: EngineSummary, result: Result) -> None:
        self.summary = summary
        self.name = f"{summary.engine} summary of {', '.join(Path(each).name for each in summary.inputs)}"
        self.began = result.run.started_at
        ours = {record.request_id for record in result.requests if record.request_id}
        named = _by_sent_id(summary, ours)
        self.requests = {name: request for name, request in named.items() if name in ours}
        runs = {run_and_item(name) for name in ours}
        self._clients = [name for name in named if name in ours or not self._is_a_number(name)]
        self.others = [
            name for name in self._clients if name not in ours and run_and_item(name) not in runs and not prepares(name)
        ]
        donors = {find_sent_id(name, ours) for name in summary.donor_requests}
        self.items = {run_and_item(name) for name in (*named, *donors)} & runs
        self._window = _window(result)

    @property
    def is_by_request(self) -> bool:
        return any(request.confirmed_tokens is not None for request in self.requests.values())

    @property
    def format(self) -> str:
        """What it was read from: two formats may be two views of one server."""
        return str(self.summary.extra.get("source", self.summary.engine))

    def _is_a_number(self, name: str) -> bool:
        """Whether the engine counted the request itself: then it is no client's name for it."""
        return self.format in _COUNTING_FORMATS and name.isdecimal()

    @property
    def is_whole(self) -> bool:
        """Whether all of its events could be read, and those of landings be given to their requests."""
        return not self.summary.unparsed_lines and not self.summary.extra.get("events_without_request")

    @property
    def tells_by_silence(self) -> bool:
        return self.is_whole and self.format in _SILENT_FORMATS

    @property
    def is_silent(self) -> bool:
        """An empty text log is of no server that ran; an empty event stream tells its counts all the same."""
        return self.summary.lines == 0 and self.summary.materialization_events is None

    @property
    def elsewhen(self) -> bool:
        """Whether all of its events lie before or after the run. Unknown times are held against nobody."""
        first, last = self.summary.first_time, self.summary.last_time
        if first is None or last is None or self._window is None:
            return False
        return last < self._window[0] or first > self._window[1]

    @property
    def meanwhile(self) -> bool:
        """Whether some of its events are known to lie within the run."""
        return self.summary.first_time is not None and self._window is not None and not self.elsewhen

    @property
    def unnamed(self) -> tuple[int, int] | None:
        """Events and tokens that landed for no named request; None where the format cannot tell."""
        tokens, events = self.summary.materialized_tokens, self.summary.materialization_events
        if tokens is None or events is None:
            return None
        named = [each for name, each in self.summary.requests.items() if not self._is_a_number(name)]
        rest = max(0, tokens - sum(each.confirmed_tokens or 0 for each in named))
        known = events if not named else min(events, int(rest > 0))
        if len(named) < len(self.summary.requests):
            return known, rest
        return int(self.summary.extra.get("events_without_request", known)), rest

    def why_not_ours(self) -> str | None:
        """What speaks against counting its unnamed tokens as this run's."""
        if self.others:
            return f"{self.name} names other clients' requests, and what it does not name may be theirs"
        first, last = self.summary.first_time, self.summary.last_time
        if self.items:
            return None
        if first is None or last is None:
            return f"{self.name} names no request and no time, so nothing ties it to this run"
        if self._window is not None and (first < self._window[0] or last > self._window[1]):
            return f"{self.name} names no request, and has events before or after this run: {self._since}"
        return None

    @property
    def _since(self) -> str:
        return f"collect it with --since-time {self.began}"

    def stranger(self, alone: bool) -> str | None:
        """Why it is of another run. ``alone``: no other summary names a request of this one.

        Of several replicas some may have served only others meanwhile.
        """
        if self.items:
            return None
        remedy = "" if alone else f"; leave it out, or {self._since}"
        if self.others and (alone or not self.meanwhile):
            known = f"{len(self.others)} requests, such as {self.others[0]}"
            return f"{self.name}: of another run: it names {known}, and none of this one{remedy}"
        if self.elsewhen:
            return f"{self.name}: of another run: all of its events are before or after this one{remedy}"
        return None

    def notes(self) -> Iterator[str]:
        if self.summary.unparsed_lines:
            lost = self.summary.unparsed_lines
            yield f"{self.name}: {lost} event lines were not readable, so its counts are lower bounds"
        if self.summary.materialized_tokens and not self._clients:
            yield f"{self.name}: names no request, so its tokens cannot be told by request"
        elif self.others and not self.items:
            yield f"{self.name}: names no request of this run, so it tells of none"


def sum_unnamed(told: Iterable[Told]) -> tuple[int, int] | None:
    """Events and tokens that landed for no named request, each once.

    Replicas add up. Two summaries of one log do not, nor do two formats, which may be two views of one server.
    """
    by_format: dict[str, list[Told]] = {}
    for each in told:
        others = by_format.setdefault(each.format, [])
        if each.unnamed is not None and not any(_same(each.summary, other.summary) for other in others):
            others.append(each)
    sums = [_added([each.unnamed for each in of_it if each.unnamed]) for of_it in by_format.values() if of_it]
    return max(sums, key=lambda counts: counts[1], default=None)


def _added(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(events for events, _ in counts), sum(tokens for _, tokens in counts)


def _same(one: EngineSummary, other: EngineSummary) -> bool:
    """Of the same files, or of copies of them."""
    if {Path(each).resolve() for each in one.inputs} & {Path(each).resolve() for each in other.inputs}:
        return True
    apart = {"inputs", "engine", "torn_lines"}
    return one.model_dump(exclude=apart) == other.model_dump(exclude=apart)


def _by_sent_id(summary: EngineSummary, ours: Collection[str]) -> dict[str, EngineRequest]:
    tries: dict[str, list[EngineRequest]] = {}
    for name, request in summary.requests.items():
        tries.setdefault(find_sent_id(name, ours), []).append(request)
    return {name: fold_tries(each) for name, each in tries.items()}


def _window(result: Result) -> tuple[float, float] | None:
    if result.run.finished_at is None:
        return None
    started, finished = (datetime.datetime.fromisoformat(at) for at in (result.run.started_at, result.run.finished_at))
    return started.timestamp() - _SLACK_S, finished.timestamp() + _SLACK_S


def told_by_silence(result: Result, told: Sequence[Told]) -> dict[str, EngineRequest]:
    """Requests of which text logs would tell if anything had landed for them.

    Only of items that a log names, by their donor as a rule: others may have come before the log began, after it was
    fetched, or to a replica whose log is not here. Where it was fetched before the run's end, items were under way.
    """
    if not all(each.tells_by_silence for each in told):
        return {}
    named_items = {item for each in told for item in each.items}
    named = {name for each in told for name in each.requests}
    served = [record for record in result.requests if record.request_id and record.status == "ok"]
    items = list(dict.fromkeys(run_and_item(record.request_id or "") for record in served))
    places = [place for place, item in enumerate(items) if item in named_items]
    if not places:
        return {}
    under_way = 0 if places[-1] == len(items) - 1 else int(result.config.get("concurrency") or 1)
    covered = named_items & set(items[: places[-1] + 1 - under_way])
    heard = _workers_heard(served, named, named_items)
    silent: dict[str, EngineRequest] = {}
    for record in served:
        name, worker = record.request_id or "", worker_of(record.route)
        if run_and_item(name) in covered and name not in named and (worker is None or worker in heard):
            silent[name] = EngineRequest(confirmed_tokens=0)
    return silent


def _workers_heard(served: Sequence[RequestRecord], named: Collection[str], items: Collection[str]) -> set[str | None]:
    """Workers whose logs are here, as far as routers name workers: those of requests that a log names."""
    heard: set[str | None] = set()
    for record in served:
        name = record.request_id or ""
        if name in named:
            heard.add(worker_of(record.route))
        elif run_and_item(name) in items and len(record.donor_workers) == 1:
            heard.update(record.donor_workers)  # a log names the donor
    return heard
