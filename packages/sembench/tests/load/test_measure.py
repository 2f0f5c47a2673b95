from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.load.answer import Answer
from sembench.load.point import LoadPoint, Percentiles, measure_point
from sembench.load.watch import Watch


def answered(due: float, *token_at: float, sent: float | None = None, **more: Any) -> Answer:
    times = array("d", token_at)
    return Answer(due, due if sent is None else sent, times, token_at[-1] if token_at else due, **more)


def point(*answers: Answer, rate: float | None = 1.0) -> LoadPoint:
    watch = Watch(10.0, 20.0, hopeless_after=20, answers=list(answers))
    concurrency = None if rate else 1
    return measure_point(watch, concurrency=concurrency, rate=rate, reuse_share=0.0, warmup_s=0, donors_served=0)


def test_only_requests_due_in_the_window_count_and_all_of_them() -> None:
    made = point(answered(9.9, 10.5), answered(10.0, 10.5), answered(19.9, 25.0), answered(20.0, 20.5))
    assert made.requests == made.ok == 2
    assert made.ttft_ms.max == pytest.approx(5100)


def test_throughput_is_what_ended_in_the_window_whenever_it_was_due() -> None:
    made = point(answered(5.0, 9.0, 12.0), answered(12.0, 13.0, 14.0, 15.0), answered(19.0, 19.5, 21.0))
    assert made.requests_per_s == pytest.approx(2 / 10)
    assert made.output_tokens_per_s == pytest.approx((1 + 3 + 1) / 10)


def test_an_event_stands_for_its_share_of_the_tokens_the_server_counted() -> None:
    made = point(answered(11.0, 12.0, 13.0, output_tokens=8))
    assert made.output_tokens_by == "usage"
    assert made.output_tokens_per_s == pytest.approx(0.8)
    mixed = point(answered(11.0, 12.0, 13.0, output_tokens=8), answered(11.0, 12.0))
    assert mixed.output_tokens_by == "events"


def test_latency_counts_from_when_it_was_due_and_service_from_when_it_was_sent() -> None:
    made = point(answered(10.0, 14.0, 15.0, sent=13.0))
    assert made.ttft_ms.p50 == pytest.approx(4000)
    assert made.service_ttft_ms.p50 == pytest.approx(1000)
    assert made.latency_ms.p50 == pytest.approx(5000)
    assert made.service_latency_ms.p50 == pytest.approx(2000)
    assert made.start_lag_ms.p50 == pytest.approx(3000)
    assert made.itl_ms.p50 == pytest.approx(1000)


def test_failures_are_counted_by_kind_and_stay_out_of_the_latencies() -> None:
    failed = Answer(11.0, 11.0)
    failed.fail("http_503", "busy", 11.1)
    made = point(answered(11.0, 12.0), failed)
    assert (made.requests, made.ok, made.failed) == (2, 1, 1)
    assert made.errors == {"http_503": 1}
    assert made.error_samples == ["http_503: busy"]
    assert made.latency_ms.n == 1


def test_a_point_without_answers_has_no_figures() -> None:
    made = point()
    assert made.ttft_ms == Percentiles(n=0)
    assert made.prompt_tokens is None
    assert made.requests_per_s == 0


def test_a_closed_loop_has_no_backlog_and_an_open_one_has() -> None:
    assert point(rate=None).waiting_max is None
    assert point(rate=2.0).waiting_max == 0


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_ordered_and_inside(values: list[float]) -> None:
    found = Percentiles.of(values)
    row = [found.p50, found.p90, found.p95, found.p99, found.max]
    assert row == sorted(row, key=lambda value: value or 0)
    assert found.max == max(values)
    assert min(values) <= (found.p50 or 0)
    assert found.n == len(values)


def test_a_percentile_lies_between_its_neighbours() -> None:
    assert Percentiles.of([1, 2, 3, 4, 5]).p50 == 3
    assert Percentiles.of([0, 10]).p90 == pytest.approx(9)
