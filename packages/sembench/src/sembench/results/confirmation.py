"""What backends confirm of a run's requests: the result's own records and engine summaries, joined by request id.

A source fills what the other does not know. Where two know a request and differ, neither can be believed.
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from sembench.results.aggregate import aggregate_records
from sembench.results.records import records_in
from sembench.schema import Aggregate, EngineRequest, EngineSummary, RequestRecord, Result

_OUR_ID = re.compile(r"sb-[0-9a-f]{8}-([0-9a-f]{16})-[a-z]+[0-9]*-[0-9]{3}")
"""The ids that the replay sends. Engines put their own marks before and behind them."""
_SILENT_FORMATS = ("vllm", "sglang")
"""Text logs that tell of what was found and landed, and not of requests for which nothing was."""
_FIGURES = (
    "backend_confirmed_block_rate",
    "backend_confirmed_lift",
    "backend_confirmed_rate_by_request",
    "negative_control_backend_confirmed_rate",
    "negative_control_backend_confirmed_rate_by_request",
    "materialized_reuse_rate",
    "materialization_events",
    "materialized_tokens",
    "decline_reasons",
)
_SHOWN = 3

_Story: TypeAlias = tuple[str, dict[str, EngineRequest]]
"""A source, and what it tells of the run's requests."""


@dataclass
class Confirmation:
    """The run's figures with all that is confirmed, and where that comes from."""

    aggregate: Aggregate
    source: str
    contradictions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_client_id(name: str) -> str:
    """The id that the replay sent, from what an engine made of it; the name itself where there is none in it."""
    found = _OUR_ID.search(name)
    return found[0] if found else name


def join_requests(records: Sequence[RequestRecord], told: Mapping[str, EngineRequest]) -> list[RequestRecord]:
    """The records with what ``told`` has of them, by request id; None stays where it has nothing."""
    return [_joined(record, told.get(record.request_id or "")) for record in records]


def confirm(result: Result, summaries: Sequence[EngineSummary]) -> Confirmation:
    """Joins the summaries to the result's records and makes the confirmed figures anew where that tells more."""
    own = any(record.confirmed_tokens is not None for record in result.requests)
    if not summaries:
        return Confirmation(result.aggregate, "result" if own else "result, without any backend event")
    told = [_Told(summary, result) for summary in summaries]
    found = Confirmation(result.aggregate, _source(own, told))
    stories = [(each.name, each.requests) for each in told]
    stories.append((f"the silence of {stories[0][0]}", _told_by_silence(result, told)))
    found.contradictions = [*_strangers(told), *_differences(result, stories), *_shortfall(result, told)]
    found.notes = [note for each in told for note in each.notes()]
    joined = join_requests(result.requests, _unknown_to(result, stories))
    if any(new.confirmed_tokens != old.confirmed_tokens for new, old in zip(joined, result.requests, strict=True)):
        found.aggregate = _made_anew(result, joined)
    return found


class _Told:
    """One summary, as far as it tells of this run."""

    def __init__(self, summary: EngineSummary, result: Result) -> None:
        self.summary = summary
        self.name = f"{summary.engine} summary of {', '.join(Path(each).name for each in summary.inputs)}"
        ours = {record.request_id for record in result.requests if record.request_id}
        named = {_clients_id(name, ours): request for name, request in summary.requests.items()}
        self.requests = {name: request for name, request in named.items() if name in ours}
        runs = {_run_and_item(name) for name in ours}
        self.others = [name for name in named if name not in ours and _run_and_item(name) not in runs]
        donors = {_clients_id(name, ours) for name in summary.donor_requests}
        self.items = {_run_and_item(name) for name in (*named, *donors)} & runs
        self.elsewhen = _elsewhen(summary, result)

    @property
    def is_by_request(self) -> bool:
        return any(request.confirmed_tokens is not None for request in self.requests.values())

    def notes(self) -> Iterator[str]:
        if self.summary.unparsed_lines:
            lost = self.summary.unparsed_lines
            yield f"{self.name}: {lost} event lines were not readable, so its counts are lower bounds"
        if self.summary.materialized_tokens and not self.summary.requests:
            yield f"{self.name}: names no request, so its tokens cannot be told by request"

    @property
    def tells_by_silence(self) -> bool:
        """Whether it is a text log that names a request with everything that landed, and can be read whole."""
        extra = self.summary.extra
        whole = not self.summary.unparsed_lines and not extra.get("realized_without_request")
        return whole and extra.get("source") in _SILENT_FORMATS


def _joined(record: RequestRecord, told: EngineRequest | None) -> RequestRecord:
    if told is None:
        return record
    settled = told.confirmed_tokens is not None
    # Events that end without an advertised load say that there was none.
    advertised = 0 if settled and told.advertised_tokens is None else told.advertised_tokens
    outcome = _outcome(told) or record.outcome
    return record.model_copy(
        update={
            "advertised_tokens": advertised,
            "confirmed_tokens": told.confirmed_tokens,
            "confirmed_blocks": None,
            "spans": told.spans,
            "decline_reason": told.reason,
            "lookup_us": told.lookup_us,
            "outcome": outcome,
        }
    )


def _outcome(told: EngineRequest) -> str | None:
    if told.confirmed_tokens:
        return "materialized"
    if told.alias_tokens:
        return "alias"
    return "declined" if told.reason else None


def _unknown_to(result: Result, stories: Sequence[_Story]) -> dict[str, EngineRequest]:
    """What summaries say of requests of which the result itself knows nothing."""
    unknown = {record.request_id for record in result.requests if record.confirmed_tokens is None}
    return {
        name: request
        for _, requests in reversed(stories)
        for name, request in requests.items()
        if name in unknown and request.confirmed_tokens is not None
    }


def _made_anew(result: Result, joined: Sequence[RequestRecord]) -> Aggregate:
    served = records_in(result, joined)
    anew = aggregate_records(served)
    figures = {name: getattr(anew, name) for name in _FIGURES}
    if len(served.items) != result.aggregate.items:
        # Items without any record may be controls, and what is not measured must not pass for cold.
        controls = {name: rate for name, rate in figures.items() if name.startswith("negative_control") and rate}
        figures |= {name: rate.model_copy(update={"value": None}) for name, rate in controls.items()}
    return result.aggregate.model_copy(update=figures)


def _clients_id(name: str, ours: set[str]) -> str:
    if name in ours or _OUR_ID.search(name):
        return find_client_id(name)
    return next((each for each in ours if each in name), name)


def _run_and_item(request_id: str) -> str:
    """The part of an id that donors and recipient of one item share."""
    found = _OUR_ID.fullmatch(request_id)
    return request_id[: found.end(1)] if found else request_id


def _told_by_silence(result: Result, told: Sequence[_Told]) -> dict[str, EngineRequest]:
    """Requests of which text logs would tell if anything had landed for them.

    Counted from the first item on that a log names: what came earlier may have come before the log began.
    """
    if not all(each.tells_by_silence for each in told):
        return {}
    items = {item for each in told for item in each.items}
    ids = [record.request_id for record in result.requests if record.request_id and record.status == "ok"]
    first = next((n for n, name in enumerate(ids) if _run_and_item(name) in items), len(ids))
    named = {name for each in told for name in each.requests}
    return {name: EngineRequest(confirmed_tokens=0) for name in ids[first:] if name not in named}


def _elsewhen(summary: EngineSummary, result: Result) -> bool:
    """Whether all of its events lie before or after the run. Unknown times are held against nobody."""
    if summary.first_time is None or summary.last_time is None or result.run.finished_at is None:
        return False
    started, finished = (datetime.datetime.fromisoformat(at) for at in (result.run.started_at, result.run.finished_at))
    return summary.last_time < started.timestamp() - 1 or summary.first_time > finished.timestamp() + 1


def _strangers(told: Sequence[_Told]) -> Iterator[str]:
    """A log of another run. Of several replicas some may have had no request of this one."""
    if any(each.items for each in told):
        return
    for each in told:
        if each.others:
            known = f"{len(each.others)} requests, such as {each.others[0]}"
            yield f"{each.name}: of another run: it names {known}, and none of this one"
        elif each.elsewhen:
            yield f"{each.name}: of another run: all of its events are before or after this one"


def _differences(result: Result, stories: Sequence[_Story]) -> Iterator[str]:
    """Requests of which two sources tell different counts."""
    counts = [("result", {record.request_id: record.confirmed_tokens for record in result.requests})]
    counts += [(source, {name: each.confirmed_tokens for name, each in told.items()}) for source, told in stories]
    for (one, here), (other, there) in itertools.combinations(counts, 2):
        apart = [
            f"{name}: {here[name]} and {tokens}"
            for name, tokens in there.items()
            if tokens is not None and here.get(name) is not None and here[name] != tokens
        ]
        if apart:
            shown = "; ".join(apart[:_SHOWN])
            yield f"{one} and {other} tell different confirmed tokens for {len(apart)} requests: {shown}"


def _shortfall(result: Result, told: Sequence[_Told]) -> Iterator[str]:
    """More in a log than in a result is other traffic. Less is a log that is not whole, or a result that is not."""
    stated = result.aggregate.materialized_tokens
    totals = [each.summary.materialized_tokens for each in told]
    known = [total for total in totals if total is not None]
    if stated and known and sum(known) < stated:
        yield f"the result states {stated} materialized tokens, the summaries only {sum(known)}"


def _source(own: bool, told: Sequence[_Told]) -> str:
    names = " and ".join(each.name for each in told)
    if own:
        return f"result, held against {names}"
    return names if any(each.is_by_request for each in told) else f"{names}, not told by request"
