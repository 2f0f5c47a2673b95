from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import pytest

from sembench.load.client import LoadClient, Target
from sembench.load.loops import PromptMix, closed_loop, draw_arrivals, open_loop
from sembench.load.point import LoadPoint, measure_point
from sembench.load.stub import MODEL, Behaviour, StubServer
from sembench.load.watch import Watch
from sembench.schema import ManifestItem


def measure(
    url: str,
    items: list[ManifestItem],
    *,
    concurrency: int | None = None,
    rate: float | None = None,
    warmup_s: float = 0.0,
    duration_s: float = 0.5,
    min_requests: int = 1,
    max_in_flight: int = 512,
    share: float = 0.0,
    timeout_s: float = 20.0,
) -> tuple[LoadPoint, Watch]:
    async def run() -> Watch:
        client = LoadClient(Target(url, MODEL, timeout_s=timeout_s))
        start = time.monotonic() + warmup_s
        watch = Watch(start, start + duration_s, hopeless_after=20, min_requests=min_requests)
        mix = PromptMix(items, share, seed=1)
        if concurrency is not None:
            await closed_loop(client, mix, watch, concurrency)
        else:
            await open_loop(client, mix, watch, rate or 1.0, max_in_flight, seed=1)
        client.close()
        return watch

    watch = asyncio.run(run())
    settings = {"concurrency": concurrency, "rate": rate, "reuse_share": share, "warmup_s": warmup_s}
    return measure_point(watch, donors_served=0, **settings), watch  # type: ignore[arg-type]


def until(end: float, moments: Iterator[float]) -> list[float]:
    return list(takewhile(lambda moment: moment < end, moments))


def test_two_hundred_streams_are_in_flight_at_once_and_all_are_answered_in_full(
    items: list[ManifestItem], stub: Callable[..., Any]
) -> None:
    server = stub("--first-token-s", 0.1, "--between-tokens-s", 0.02, "--tokens", 20, "--hold-until", 200)
    point, watch = measure(server.url, items, concurrency=200, warmup_s=0.3, min_requests=200)
    assert server.stop()["in_flight_max"] == 200
    assert point.in_flight_max == 200
    assert point.failed == 0
    assert point.ok == point.requests >= 200
    counted = [answer for answer in watch.answers if watch.counts(answer.due)]
    assert all(len(answer.token_at) == 20 and answer.output_tokens == 20 for answer in counted)
    assert point.ttft_ms.n == point.ok
    assert point.itl_ms.n == 19 * point.ok


def test_a_closed_loop_never_has_more_in_flight_than_it_was_told(
    items: list[ManifestItem], stub: Callable[..., Any]
) -> None:
    server = stub("--first-token-s", 0.01, "--between-tokens-s", 0, "--tokens", 3)
    point, _ = measure(server.url, items, concurrency=7, min_requests=20)
    assert server.stop()["in_flight_max"] <= 7
    assert point.in_flight_max == 7
    assert point.ok >= 20


def test_every_request_that_was_due_in_the_window_is_counted_to_its_end(
    items: list[ManifestItem], stub: Callable[..., Any]
) -> None:
    """An answer takes longer than the window: none of them may be dropped for that."""
    server = stub("--first-token-s", 0.8, "--between-tokens-s", 0, "--tokens", 2)
    point, _ = measure(server.url, items, concurrency=3, duration_s=0.3, min_requests=3)
    assert (point.requests, point.ok, point.failed) == (3, 3, 0)
    assert point.requests_per_s == 0
    assert (point.latency_ms.p50 or 0) >= 800


def test_arrivals_are_poisson_and_follow_the_seed() -> None:
    moments = until(100.0, draw_arrivals(50.0, seed=1))
    assert moments == sorted(moments)
    assert moments[0] > 0
    # 5,000 expected; four standard deviations are 283.
    assert abs(len(moments) - 5000) < 283
    assert moments == until(100.0, draw_arrivals(50.0, seed=1))
    assert moments != until(100.0, draw_arrivals(50.0, seed=2))


def test_an_open_loop_does_not_wait_for_answers(items: list[ManifestItem], stub: Callable[..., Any]) -> None:
    """No answer comes before all arrivals have been sent."""
    due = len(until(0.8, draw_arrivals(60.0, seed=1)))
    server = stub("--first-token-s", 0, "--between-tokens-s", 0, "--tokens", 2, "--hold-until", due)
    # However late the window begins to count, it waits for them.
    point, _ = measure(server.url, items, rate=60.0, duration_s=0.8, min_requests=due)
    assert point.requests == due
    assert point.in_flight_max == due
    assert point.ok == point.requests


def test_the_window_stays_open_until_enough_requests_were_due(
    items: list[ManifestItem], stub: Callable[..., Any]
) -> None:
    server = stub("--first-token-s", 0.05, "--between-tokens-s", 0, "--tokens", 1)
    for mode in ({"concurrency": 1}, {"rate": 20.0}):
        point, _ = measure(server.url, items, duration_s=0.001, min_requests=4, **mode)  # type: ignore[arg-type]
        assert point.requests == point.ok == 4
        assert point.duration_s > 0.05, "the figures are of the time it took"


def test_the_wait_for_a_slot_counts_as_latency_and_stands_beside_service_time(
    items: list[ManifestItem], stub: Callable[..., Any]
) -> None:
    """One slot and 50 ms per answer serve 20 a second; 40 a second come."""
    server = stub("--first-token-s", 0.05, "--between-tokens-s", 0, "--tokens", 2)
    point, watch = measure(server.url, items, rate=40.0, duration_s=1.0, max_in_flight=1)
    assert point.in_flight_max == 1
    assert (point.waiting_max or 0) > 3
    assert (point.backlog or 0) > 3
    assert (point.backlog_at_start or 0) < (point.backlog or 0), "it grew, whoever came before the first was sent"
    waits = {
        answer.due: answer.sent - answer.due
        for answer in watch.answers
        if answer.sent is not None and watch.counts(answer.due)
    }
    last = max(waits)
    assert waits[last] > 0.1
    assert (point.latency_ms.max or 0) >= 1000 * waits[last] + 50
    assert (point.service_latency_ms.p50 or 0) < (point.latency_ms.p50 or 0)


def test_what_is_not_answered_at_the_end_is_a_failure_and_no_omission(
    items: list[ManifestItem], stub: Callable[..., Any]
) -> None:
    server = stub("--first-token-s", 30)
    point, _ = measure(server.url, items, rate=30.0, duration_s=0.5, max_in_flight=2, timeout_s=1.5)
    assert point.ok == 0
    assert point.failed == point.requests > 5
    assert point.errors.keys() == {"timeout", "unfinished"}
    assert point.ttft_ms.n == 0
    assert point.ttft_ms.p50 is None


@pytest.mark.parametrize("mode", [{"concurrency": 4}, {"rate": 50.0}])
def test_a_server_that_is_gone_ends_the_point(items: list[ManifestItem], mode: dict[str, Any]) -> None:
    point, _ = measure("http://127.0.0.1:1", items, duration_s=60.0, **mode)
    assert point.stopped is not None
    assert "failed in a row, the last with connect" in point.stopped
    assert point.ok == 0
    assert point.errors["connect"] >= 20
    assert point.duration_s < 60


def test_the_recipients_that_were_drawn_are_told(items: list[ManifestItem]) -> None:
    async def run() -> Watch:
        server_of = StubServer(Behaviour(first_token_s=0.0, between_tokens_s=0.0, tokens=1))
        async with await server_of.listen() as server:
            port = server.sockets[0].getsockname()[1]
            client = LoadClient(Target(f"http://127.0.0.1:{port}", MODEL))
            start = time.monotonic()
            watch = Watch(start, start, hopeless_after=20, min_requests=5)
            await closed_loop(client, PromptMix(items, 1.0, seed=1), watch, 2)
            client.close()
            return watch

    watch = asyncio.run(run())
    assert set(watch.items) == {item.item_id for item in items if not item.negative_control}
    assert all(answer.reuse for answer in watch.answers)
