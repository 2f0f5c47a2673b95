"""The figures of one run, made of its manifest's items and its request records.

What a rate is made of
----------------------
* **Items.** Every item that ``build_result`` was given counts, negative controls too, whether or not it was served.
* **By request** (placement, quality): the denominator is the number of items (for quality: of items with accepted
  answers). A request that failed or was never sent is in it, and never in the numerator.
* **By block**: the denominator is the full blocks of all items whose prompt length is known in any arm, failed
  requests included. An item whose length nobody knows is in neither part.
* **Numerators** count what is known. An item that was served and not measured adds nothing, so such a rate is a lower
  bound; where no item at all was measured there is no rate (None).
* **What should be small** (negative controls, contamination) must not gain by going unmeasured: one control that
  failed, is missing or was not measured leaves the rate without a value, with what is known of its two parts. Of a
  control every block counts of which any token was confirmed.
* **Confirmed tokens** count for requests that succeeded: KV that landed for a request that failed served nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sembench.identity import now
from sembench.results.paired import pair_up
from sembench.results.records import Records, confirmed_blocks, confirmed_tokens
from sembench.results.routes import has_choice, was_placed
from sembench.schema import Aggregate, ManifestItem, Rate, RequestRecord, Result, RunIdentity, TransformSummary
from sembench.statistics import mean, percentile

RecordCount = Callable[[RequestRecord], int | None]


def build_result(
    run: RunIdentity,
    config: dict[str, Any],
    items: Sequence[ManifestItem],
    records: Sequence[RequestRecord],
    block_size: int = 16,
) -> Result:
    """The result of a run over ``items``: all figures, over everything and for each transform.

    ``records`` holds at most one record per item and arm; an item may lack some or all of them. Filled in where it can
    be: block counts from token counts, ROUGE-L of a warm answer against the cold one, the end of the run.
    """
    served = Records(items, records, block_size)
    return Result(
        run=run if run.finished_at else run.model_copy(update={"finished_at": now()}),
        config=config,
        aggregate=aggregate_records(served),
        paired=pair_up(served) if served.has_pairs else None,
        by_transform={name: _summary(part) for name, part in served.by_transform()},
        requests=list(served),
    )


def _summary(served: Records) -> TransformSummary:
    return TransformSummary(aggregate=aggregate_records(served), paired=pair_up(served) if served.has_pairs else None)


def aggregate_records(served: Records) -> Aggregate:
    """All rates and means of the arm that the run is about."""
    main = served.of(served.main_arm)
    controls = served.only(lambda item: item.negative_control)
    exact = _block_rate(served, lambda record: record.exact_blocks)
    eligible = _block_rate(served, lambda record: record.eligible_blocks)
    confirmed = _block_rate(served, confirmed_blocks)
    landed = [tokens for record in main if (tokens := confirmed_tokens(record)) is not None]
    return Aggregate(
        items=len(served.items),
        arm=served.main_arm,
        requests_ok=sum(record.status == "ok" for record in main),
        requests_failed=sum(record.status == "error" for record in main),
        block_size=served.block_size,
        exact_block_hit_rate=exact,
        semantic_candidate_block_rate=_block_rate(served, lambda record: record.candidate_blocks),
        semantic_eligible_block_rate=eligible,
        backend_confirmed_block_rate=confirmed,
        semantic_eligible_lift=_difference(eligible, exact),
        backend_confirmed_lift=_difference(confirmed, exact),
        **_by_request(served, controls),
        negative_control_semantic_eligible_rate=_strict(
            controls,
            _block_rate(controls, lambda record: record.eligible_blocks),
            lambda record: record.eligible_blocks,
            in_blocks=True,
        ),
        negative_control_backend_confirmed_rate=_strict(
            controls, _block_rate(controls, _touched_blocks(served)), confirmed_tokens, in_blocks=True
        ),
        materialized_reuse_rate=_materialized(main),
        propagation_contamination_rate=measure_contamination(served),
        materialization_events=sum(tokens > 0 for tokens in landed) if landed else None,
        materialized_tokens=sum(landed) if landed else None,
        outcomes=dict(Counter(record.outcome for record in main if record.outcome)),
        decline_reasons=dict(Counter(record.decline_reason for record in main if record.decline_reason)),
        lookup_us=_lookup_times(main),
        **_quality(served),
    )


def measure_contamination(served: Records) -> Rate | None:
    """Share of probes that show the traces of an earlier approximate request.

    A probe repeats, with reuse off, a prompt whose warm request had confirmed tokens; probes of other prompts show
    nothing and are left out. It is contaminated where the backend confirmed relocated tokens for it all the same, or
    where its output is not, character by character, the cold output of that item. It is measured where it succeeded
    and both outputs are there; one that is not leaves the rate without a value. On an engine whose cold outputs differ
    among themselves this reads above 0 without any contamination: hold it against the noise floor.
    """
    probed = [probe for probe in served.of("probe") if (confirmed_tokens(served.find("warm", probe.item_id)) or 0) > 0]
    verdicts = [_is_contaminated(probe, served.find("cold", probe.item_id)) for probe in probed]
    if all(verdict is None for verdict in verdicts):
        return None
    found = sum(verdict is True for verdict in verdicts)
    if None in verdicts:
        return Rate(value=None, numerator=found, denominator=len(verdicts))
    return Rate.of(found, len(verdicts))


def _is_contaminated(probe: RequestRecord, cold: RequestRecord | None) -> bool | None:
    if (confirmed_tokens(probe) or 0) > 0:
        return True
    if cold is None or cold.status != "ok" or probe.status != "ok" or cold.output is None or probe.output is None:
        return None
    return cold.output != probe.output


def _by_request(served: Records, controls: Records) -> dict[str, Any]:
    """Three questions that must not be mixed: was it routed, was something found, did something land."""
    routed = _placed if has_choice(served.of(served.main_arm)) else _never_told
    counted: dict[str, RecordCount] = {
        "semantic_eligible_rate_by_request": _eligible,
        "backend_confirmed_rate_by_request": _confirmed,
    }
    rates: dict[str, Any] = {name: _request_rate(served, figure) for name, figure in counted.items()}
    rates |= {
        f"negative_control_{name}": _strict(controls, _request_rate(controls, figure), figure)
        for name, figure in counted.items()
    }
    return rates | {
        "semantic_placement_rate_by_request": _request_rate(served, routed),
        "negative_control_semantic_placement_rate": _strict(controls, _request_rate(controls, routed), routed),
    }


def _placed(record: RequestRecord) -> int | None:
    placed = was_placed(record) if record.status == "ok" else None
    return None if placed is None else int(placed)


def _never_told(record: RequestRecord) -> int | None:
    return None


def _confirmed(record: RequestRecord) -> int | None:
    tokens = confirmed_tokens(record)
    return None if tokens is None else int(tokens > 0)


def _eligible(record: RequestRecord) -> int | None:
    beyond = record.eligible_beyond_exact_blocks
    return None if beyond is None else int(beyond > 0)


def _touched_blocks(served: Records) -> RecordCount:
    """Of controls: a block of which any token was confirmed is not cold. Full ones alone would hide the others."""

    def count(record: RequestRecord) -> int | None:
        tokens, total = confirmed_tokens(record), served.total_blocks(record.item_id)
        if tokens is None:
            return None
        touched = -(-tokens // served.block_size)
        return touched if total is None else min(touched, total)

    return count


def _block_rate(served: Records, figure: RecordCount) -> Rate | None:
    total, known = 0, []
    for item in served.items:
        blocks = served.total_blocks(item.item_id)
        if blocks is None:
            continue
        total += blocks
        record = served.find(served.main_arm, item.item_id)
        if record is not None and (value := figure(record)) is not None:
            known.append(value)
    return Rate.of(sum(known), total) if known else None


def _request_rate(served: Records, figure: RecordCount) -> Rate | None:
    known = [value for record in served.of(served.main_arm) if (value := figure(record)) is not None]
    return Rate.of(sum(known), len(served.items)) if known else None


def _strict(controls: Records, rate: Rate | None, figure: RecordCount, *, in_blocks: bool = False) -> Rate | None:
    """Without a value unless every control was measured, and for block rates its length is known."""
    measured = sum(
        figure(record) is not None and not (in_blocks and controls.total_blocks(record.item_id) is None)
        for record in controls.of(controls.main_arm)
    )
    if rate is None or measured == len(controls.items):
        return rate
    return rate.model_copy(update={"value": None})


def _difference(rate: Rate | None, exact: Rate | None) -> float | None:
    if rate is None or exact is None or rate.value is None or exact.value is None:
        return None
    return rate.value - exact.value


def _materialized(main: Sequence[RequestRecord]) -> Rate | None:
    """Confirmed of advertised tokens, over the requests of which it is known what was advertised."""
    advertised = [record for record in main if record.advertised_tokens is not None]
    landed = [tokens for record in advertised if (tokens := confirmed_tokens(record)) is not None]
    return Rate.of(sum(landed), sum(record.advertised_tokens or 0 for record in advertised)) if landed else None


def _lookup_times(main: Sequence[RequestRecord]) -> dict[str, float] | None:
    times = [record.lookup_us for record in main if record.lookup_us is not None]
    figures = {"p50": percentile(times, 50), "p99": percentile(times, 99), "max": percentile(times, 100)}
    return {name: value for name, value in figures.items() if value is not None} or None


def _quality(served: Records) -> dict[str, Any]:
    scored = [record.quality for record in served.of(served.main_arm) if record.status == "ok"]

    def known(name: str) -> Iterable[float]:
        return [value for quality in scored if (value := getattr(quality, name)) is not None]

    averaged = ("exact_match", "f1", "rouge_l", "token_recall", "kl_mean", "ppl_ratio", "top1")
    passed = [bool(value) for value in known("passed")]
    with_answers = sum(bool(item.answers) for item in served.items)
    return {
        "quality_pass_rate": Rate.of(sum(passed), with_answers) if passed else None,
        "kl_max": max(known("kl_max"), default=None),
        **{name: mean(known(name)) for name in averaged},
    }
