"""What backends confirm of a run's requests: the result's own records and engine summaries, joined by request id.

A source fills what the other does not know. Where two know a request and differ, neither can be believed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sembench.results.aggregate import aggregate_records
from sembench.results.paired import pair_up
from sembench.results.records import Records, records_in
from sembench.results.told import Told, sum_unnamed, told_by_silence
from sembench.schema import Aggregate, EngineRequest, EngineSummary, Paired, RequestRecord, Result

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
    paired: Paired | None
    source: str
    told: Sequence[Told] = ()
    contradictions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def join_requests(records: Sequence[RequestRecord], told: Mapping[str, EngineRequest]) -> list[RequestRecord]:
    """The records with what ``told`` has of them, by request id; None stays where it has nothing.

    What landed for a request that failed is no figure of the run.
    """
    return [
        _joined(record, told.get(record.request_id or "")) if record.status == "ok" else record for record in records
    ]


def confirm(result: Result, summaries: Sequence[EngineSummary]) -> Confirmation:
    """Joins the summaries to the result's records and makes the confirmed figures anew where that tells more."""
    own = any(record.confirmed_tokens is not None for record in result.requests)
    told = [Told(summary, result) for summary in summaries]
    found = Confirmation(result.aggregate, result.paired, _source(own, told), told)
    if not told:
        found.contradictions = list(_beyond_the_prompt(result.requests))
        return found
    stories = [(each.name, each.requests) for each in told]
    stories.append((f"the silence of {stories[0][0]}", told_by_silence(result, told)))
    joined = join_requests(result.requests, _unknown_to(result, stories))
    found.contradictions = [
        *_strangers(told),
        *_differences(result, stories),
        *_shortfall(result, told),
        *_beyond_the_prompt(joined),
    ]
    found.notes = [note for each in told for note in each.notes()]
    if any(new.confirmed_tokens != old.confirmed_tokens for new, old in zip(joined, result.requests, strict=True)):
        served = records_in(result, joined)
        found.aggregate = _made_anew(result, served)
        found.paired = pair_up(served) if result.paired else None
    return found


def _joined(record: RequestRecord, told: EngineRequest | None) -> RequestRecord:
    if told is None:
        return record
    # Events that end without a load say that none was advertised. Of a load itself not every backend tells so early.
    none = told.confirmed_tokens == 0 and told.advertised_tokens is None
    advertised = 0 if none else told.advertised_tokens
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


def _made_anew(result: Result, served: Records) -> Aggregate:
    anew = aggregate_records(served)
    figures = {name: getattr(anew, name) for name in _FIGURES}
    if len(served.items) != result.aggregate.items:
        # Items without any record may be controls, and what is not measured must not pass for cold.
        controls = {name: rate for name, rate in figures.items() if name.startswith("negative_control") and rate}
        figures |= {name: rate.model_copy(update={"value": None}) for name, rate in controls.items()}
    return result.aggregate.model_copy(update=figures)


def _strangers(told: Sequence[Told]) -> Iterator[str]:
    """Logs of another run, also beside one of this."""
    alone = not any(each.items for each in told)
    for each in told:
        why = each.stranger(alone)
        if why:
            yield why


def _beyond_the_prompt(records: Sequence[RequestRecord]) -> Iterator[str]:
    """No more tokens can land than there are: such a count is of something else, or told twice."""
    beyond = [
        f"{record.request_id}: {record.confirmed_tokens} confirmed tokens of a prompt of {record.prompt_tokens}"
        for record in records
        if record.prompt_tokens is not None and (record.confirmed_tokens or 0) > record.prompt_tokens
    ]
    if beyond:
        yield f"{len(beyond)} requests have more confirmed tokens than their prompts have: {'; '.join(beyond[:_SHOWN])}"


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


def _shortfall(result: Result, told: Sequence[Told]) -> Iterator[str]:
    """Less in the logs than in a result: a log that is not whole, or a result that is not. More is other traffic."""
    stated = result.aggregate.materialized_tokens
    unnamed = sum_unnamed(told)
    if not stated or unnamed is None:
        return
    named: dict[str, int] = {}
    for name, request in (entry for each in told for entry in each.requests.items()):
        named[name] = max(named.get(name, 0), request.confirmed_tokens or 0)
    known = unnamed[1] + sum(named.values())
    if known < stated:
        yield f"the result states {stated} materialized tokens, the summaries only {known} that can be of this run"


def _source(own: bool, told: Sequence[Told]) -> str:
    if not told:
        return "result" if own else "result, without any backend event"
    names = " and ".join(each.name for each in told)
    by_request = any(each.is_by_request for each in told)
    if own:
        return f"result, held against {names}" if by_request else f"result; by request nothing is told by {names}"
    return names if by_request else f"{names}, not told by request"
