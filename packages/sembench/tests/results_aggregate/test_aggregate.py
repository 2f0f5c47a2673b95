"""Rates and means of a run: what is in the numerator, what in the denominator, and when there is no rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sembench.results import build_result
from sembench.schema import Aggregate, InputError, ManifestItem, Quality, Rate, RequestRecord, RunIdentity

MakeItem = Callable[..., ManifestItem]
MakeRecord = Callable[..., RequestRecord]


def parts(rate: Rate | None) -> tuple[float | None, float | None, float | None] | None:
    return None if rate is None else (rate.value, rate.numerator, rate.denominator)


def aggregate(identity: RunIdentity, items: list[ManifestItem], records: list[RequestRecord]) -> Aggregate:
    return build_result(identity, {}, items, records).aggregate


def test_block_rates_worked_out_by_hand(identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord) -> None:
    a, b, c = make_item("a"), make_item("b"), make_item("c", "negative_control")
    records = [
        make_record(
            a, "warm", prompt_tokens=165, exact_blocks=2, eligible_blocks=8, confirmed_tokens=100, advertised_tokens=128
        ),
        make_record(
            b, "warm", prompt_tokens=80, exact_blocks=0, eligible_blocks=3, confirmed_tokens=0, advertised_tokens=64
        ),
        make_record(
            c, "warm", prompt_tokens=80, exact_blocks=0, eligible_blocks=0, confirmed_tokens=0, advertised_tokens=0
        ),
    ]
    figures = aggregate(identity, [a, b, c], records)
    # Blocks: 10 + 5 + 5. Confirmed: 100 tokens are 6 full blocks.
    assert parts(figures.exact_block_hit_rate) == (0.1, 2, 20)
    assert parts(figures.semantic_eligible_block_rate) == (0.55, 11, 20)
    assert parts(figures.backend_confirmed_block_rate) == (0.3, 6, 20)
    assert figures.semantic_eligible_lift == pytest.approx(0.45)
    assert figures.backend_confirmed_lift == pytest.approx(0.2)
    assert figures.semantic_candidate_block_rate is None
    assert parts(figures.backend_confirmed_rate_by_request) == (1 / 3, 1, 3)
    assert parts(figures.negative_control_semantic_eligible_rate) == (0, 0, 5)
    assert parts(figures.negative_control_backend_confirmed_rate) == (0, 0, 5)
    assert parts(figures.negative_control_backend_confirmed_rate_by_request) == (0, 0, 1)
    assert parts(figures.materialized_reuse_rate) == (100 / 192, 100, 192)
    assert (figures.materialization_events, figures.materialized_tokens) == (1, 100)
    assert (figures.items, figures.requests_ok, figures.requests_failed, figures.arm) == (3, 3, 0, "warm")


def test_failed_and_missing_requests_stay_in_the_denominators(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    served, failed, missing, unknown = (make_item(name) for name in "abcd")
    records = [
        make_record(served, "cold", prompt_tokens=160),
        make_record(served, "warm", prompt_tokens=160, confirmed_tokens=160, quality=Quality(passed=True)),
        make_record(failed, "cold", prompt_tokens=160),
        # Its KV landed, and then it failed: nobody was served with it.
        make_record(failed, "warm", status="error", error="timeout", confirmed_tokens=160),
        make_record(missing, "cold", prompt_tokens=160),
        make_record(unknown, "warm", status="error", error="refused"),
    ]
    figures = aggregate(identity, [served, failed, missing, unknown], records)
    assert parts(figures.backend_confirmed_rate_by_request) == (0.25, 1, 4)
    assert parts(figures.quality_pass_rate) == (0.25, 1, 4)
    # The cold arm tells the length of what failed warm; nobody knows that of the fourth.
    assert parts(figures.backend_confirmed_block_rate) == (10 / 30, 10, 30)
    assert figures.materialized_tokens == 160
    assert (figures.requests_ok, figures.requests_failed) == (1, 2)


def test_what_was_not_measured_is_none_and_never_zero(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    item, control = make_item("a"), make_item("b", "negative_control")
    records = [make_record(item, "warm", prompt_tokens=160), make_record(control, "warm", prompt_tokens=160)]
    figures = aggregate(identity, [item, control], records).model_dump(exclude_none=True)
    assert figures == {
        "items": 2,
        "arm": "warm",
        "requests_ok": 2,
        "requests_failed": 0,
        "block_size": 16,
        "outcomes": {},
        "decline_reasons": {},
    }


def test_a_measured_zero_is_zero(identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord) -> None:
    item = make_item("a")
    figures = aggregate(identity, [item], [make_record(item, "warm", prompt_tokens=160, confirmed_tokens=0)])
    assert parts(figures.backend_confirmed_block_rate) == (0, 0, 10)
    assert (figures.materialization_events, figures.materialized_tokens) == (0, 0)
    assert figures.materialized_reuse_rate is None


def test_nothing_advertised_is_no_rate_of_nothing(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    item = make_item("a")
    figures = aggregate(identity, [item], [make_record(item, "warm", advertised_tokens=0, confirmed_tokens=0)])
    assert parts(figures.materialized_reuse_rate) == (None, 0, 0)


@pytest.mark.parametrize("second", ["unmeasured", "failed", "missing"])
def test_a_control_that_was_not_measured_does_not_count_as_clean(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord, second: str
) -> None:
    one, two = make_item("a", "negative_control"), make_item("b", "negative_control")
    figures = {"prompt_tokens": 160, "eligible_blocks": 0, "confirmed_tokens": 0}
    records = [make_record(one, "warm", **figures), make_record(two, "cold", prompt_tokens=160)]
    if second == "unmeasured":
        records.append(make_record(two, "warm", prompt_tokens=160))
    elif second == "failed":
        records.append(make_record(two, "warm", status="error", error="timeout"))
    total = aggregate(identity, [one, two], records)
    assert parts(total.negative_control_semantic_eligible_rate) == (None, 0, 20)
    assert parts(total.negative_control_backend_confirmed_rate) == (None, 0, 20)
    assert parts(total.negative_control_backend_confirmed_rate_by_request) == (None, 0, 2)


def test_a_swapped_entity_is_no_negative_control(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    item = make_item("a", "entity_swap_control")
    total = aggregate(identity, [item], [make_record(item, "warm", prompt_tokens=160, confirmed_tokens=64)])
    assert total.negative_control_backend_confirmed_rate is None
    assert parts(total.backend_confirmed_block_rate) == (0.4, 4, 10)


def test_quality_is_averaged_over_what_was_scored(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    a, b, free = make_item("a"), make_item("b"), make_item("c", answers=())
    records = [
        make_record(a, "warm", quality=Quality(exact_match=1, f1=1, passed=True, kl_mean=0.1, kl_max=0.5, top1=1)),
        make_record(b, "warm", quality=Quality(exact_match=0, f1=0.5, passed=False, kl_mean=0.3, kl_max=0.4)),
        make_record(free, "warm"),
    ]
    figures = aggregate(identity, [a, b, free], records)
    assert (figures.exact_match, figures.f1, figures.rouge_l) == (0.5, 0.75, None)
    assert figures.kl_mean == pytest.approx(0.2)
    assert (figures.kl_max, figures.top1) == (0.5, 1)
    assert parts(figures.quality_pass_rate) == (0.5, 1, 2)


def test_outcomes_reasons_and_lookup_times_are_counted(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    items = [make_item(name) for name in "abc"]
    told: list[dict[str, Any]] = [
        {"outcome": "materialized", "lookup_us": 100},
        {"outcome": "declined", "decline_reason": "no_spans", "lookup_us": 300},
        {"outcome": "declined", "decline_reason": "no_spans", "lookup_us": 200},
    ]
    records = [make_record(item, "warm", **figures) for item, figures in zip(items, told, strict=True)]
    figures = aggregate(identity, items, records)
    assert figures.outcomes == {"materialized": 1, "declined": 2}
    assert figures.decline_reasons == {"no_spans": 2}
    assert figures.lookup_us == {"p50": 200, "p99": pytest.approx(298), "max": 300}


@pytest.mark.parametrize(
    ("arms", "main"), [(["cold"], "cold"), (["cold", "exact"], "exact"), (["cold", "warm"], "warm"), ([], None)]
)
def test_the_figures_name_their_arm(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord, arms: list[str], main: str | None
) -> None:
    item = make_item("a")
    result = build_result(identity, {}, [item], [make_record(item, arm) for arm in arms])
    assert result.aggregate.arm == main
    assert (result.paired is not None) == (arms == ["cold", "warm"])


PROBES = [
    # confirmed warm, probe, cold output, contaminated
    (64, {"output": "same"}, "same", (0, 0, 1)),
    (64, {"output": "other"}, "same", (1, 1, 1)),
    (64, {"output": "same", "confirmed_tokens": 16}, "same", (1, 1, 1)),
    (64, {"output": None, "confirmed_tokens": 16}, "same", (1, 1, 1)),
    (64, {"output": "same"}, None, None),
    (64, {"status": "error", "error": "timeout"}, "same", None),
    (0, {"output": "other"}, "same", None),
    (None, {"output": "other"}, "same", None),
]


@pytest.mark.parametrize(("confirmed", "probe", "cold_output", "expected"), PROBES)
def test_a_probe_shows_contamination(
    identity: RunIdentity,
    make_item: MakeItem,
    make_record: MakeRecord,
    confirmed: int | None,
    probe: dict[str, Any],
    cold_output: str | None,
    expected: tuple[float, float, float] | None,
) -> None:
    item = make_item("a")
    records = [
        make_record(item, "cold", output=cold_output),
        make_record(item, "warm", confirmed_tokens=confirmed),
        make_record(item, "probe", **probe),
    ]
    assert parts(aggregate(identity, [item], records).propagation_contamination_rate) == expected


def test_a_probe_that_cannot_be_compared_leaves_the_rate_without_a_value(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    items = [make_item(name) for name in "ab"]
    records = [make_record(item, "warm", confirmed_tokens=64) for item in items]
    records += [make_record(item, "cold", output="x") for item in items]
    records += [make_record(items[0], "probe", output="x"), make_record(items[1], "probe", output=None)]
    assert parts(aggregate(identity, items, records).propagation_contamination_rate) == (None, 0, 2)


def test_each_transform_has_its_own_figures(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    items = [make_item("a", "rag_reorder"), make_item("b", "exact_repeat"), make_item("c", "rag_reorder")]
    records = [
        make_record(item, "warm", prompt_tokens=160, confirmed_tokens=tokens)
        for item, tokens in zip(items, (160, 0, 80), strict=True)
    ]
    result = build_result(identity, {}, items, records)
    assert list(result.by_transform) == ["rag_reorder", "exact_repeat"]
    rates = {name: part.aggregate.backend_confirmed_block_rate for name, part in result.by_transform.items()}
    assert {name: parts(rate) for name, rate in rates.items()} == {
        "rag_reorder": (0.75, 15, 20),
        "exact_repeat": (0, 0, 10),
    }


def test_what_follows_from_a_record_is_filled_in(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    item = make_item("a")
    records = [
        make_record(item, "cold", output="the disk is full", proved_cold=True),
        make_record(item, "warm", output="disk full", prompt_tokens=100, confirmed_tokens=70, quality=Quality(f1=0.5)),
    ]
    result = build_result(identity, {"k": 1}, [item], records)
    cold, warm = result.requests
    assert (warm.total_blocks, warm.confirmed_blocks) == (6, 4)
    assert warm.quality == Quality(f1=0.5, cold_rouge_l=0.8)
    assert cold.quality == Quality()
    assert records[1].total_blocks is None
    assert result.run.finished_at is not None
    assert result.config == {"k": 1}


def test_records_that_do_not_belong_are_refused(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    item, stranger = make_item("a"), make_item("b")
    with pytest.raises(InputError, match="which the manifest does not hold"):
        build_result(identity, {}, [item], [make_record(stranger, "warm")])
    with pytest.raises(InputError, match="two records in the arm warm"):
        build_result(identity, {}, [item], [make_record(item, "warm"), make_record(item, "warm")])
    with pytest.raises(InputError, match="--block-size must be at least 1"):
        build_result(identity, {}, [item], [], block_size=0)


def test_a_cold_answer_that_was_not_proved_cold_is_compared_with_nothing(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    item = make_item("a")
    records = [make_record(item, "cold", output="full"), make_record(item, "warm", output="full")]
    assert build_result(identity, {}, [item], records).requests[1].quality.cold_rouge_l is None


def test_a_control_of_unknown_length_leaves_the_block_rate_without_a_value(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    items = [make_item("a", "negative_control"), make_item("b", "negative_control")]
    records = [
        make_record(items[0], "warm", prompt_tokens=64, confirmed_tokens=0),
        make_record(items[1], "warm", prompt_tokens=None, confirmed_tokens=640),
    ]
    rate = build_result(identity, {}, items, records).aggregate.negative_control_backend_confirmed_rate
    assert rate is not None
    assert rate.value is None
