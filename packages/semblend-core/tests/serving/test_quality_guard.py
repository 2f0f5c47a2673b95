"""The live guard: who is compared, what is told of it, and what follows."""

from __future__ import annotations

import logging
from itertools import count

import numpy as np
import pytest

from semblend_core import Namespace, Plan, Settings, Span, TokenIds, tenant_of_salt
from semblend_core.serving import Claim, Comparison, Lineage, LineageBook, QualityGuard, Scored
from semblend_core.serving.quality_guard import ANSWER_TOKENS, LONGEST_WAIT_S, MOST_WAITING
from semblend_core.telemetry import QualityCompared
from semblend_core.telemetry.events import AuditEvent

ONE, THREE = [Span(0, "a", 10, 200)], [Span(200 * at, f"d{at}", 0, 200) for at in range(3)]
COLD = Scored(np.array([[1, 2], [3, 4]]), np.log(np.array([[0.7, 0.2], [0.6, 0.3]])))
OTHER = Scored(np.array([[9, 2], [8, 4]]), np.log(np.array([[0.7, 0.2], [0.6, 0.3]])))


class Recorder:
    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def emit(self, event: AuditEvent) -> None:
        self.events.append(event)


def namespace(salt: str = "a") -> Namespace:
    return Namespace(
        model="m", revision="r", tokenizer="t", dtype="f", kv_layout="l", block_size=16, adapter=None, salt=salt
    )


def tokens(length: int) -> TokenIds:
    ids = np.arange(length, dtype=np.int32)
    ids.flags.writeable = False
    return ids


def lineage(places: int = 1, spending: float = 1.0) -> Lineage:
    return Lineage(b"name", namespace().digest, 0, b"", places=places, spending=spending)


def guard(share: float = 1.0, target: float = 0.9, **options: object) -> QualityGuard[str]:
    return QualityGuard(Settings(quality_share=share, quality_target=target), **options)  # type: ignore[arg-type]


def added(guard: QualityGuard[str], of: Lineage, salt: str = "a", request_id: str = "r") -> Comparison[str]:
    guard.add(request_id, namespace(salt), tokens(100), tokens(200), of, "note")
    comparison = guard.next()
    assert comparison is not None
    return comparison


def compare(guard: QualityGuard[str], of: Lineage, *, well: bool) -> None:
    comparison = added(guard, of)
    comparison.reused = COLD if well else OTHER
    guard.finish(comparison, COLD)


REQUESTS = count()


def asked(guard: QualityGuard[str], spans: list[Span], request_id: str | None = None) -> float | None:
    """By a request of its own, unless it is named."""
    return guard.ask(Plan.over(request_id or f"asks {next(REQUESTS)}", 1000, 0, spans))


def fall_short(guard: QualityGuard[str], spans: list[Span]) -> None:
    """Until the kind is declined."""
    while (spending := asked(guard, spans)) is not None:
        compare(guard, lineage(len(spans), spending), well=False)


def test_several_plans_of_one_request_count_as_one() -> None:
    declining = {name: guard() for name in ("many requests", "many plans")}
    for each in declining.values():
        fall_short(each, THREE)
    for number in count():
        answer = asked(declining["many requests"], THREE)
        plans = [asked(declining["many plans"], THREE, f"request {number}") for _ in range(3)]
        assert plans == [answer] * 3
        if answer is not None:
            break
    assert number > 0


def test_requests_that_are_planned_by_turns_count_once_each() -> None:
    held, alone = guard(), guard()
    fall_short(held, THREE)
    fall_short(alone, THREE)
    asks = 0
    while asked(alone, THREE) is None:
        asks += 1
    for _ in range(asks):  # Of each of those who wait.
        assert [asked(held, THREE, f"waits {number}") for number in range(8)] == [None] * 8


def test_who_waits_is_told_anew_when_more_is_to_be_spent() -> None:
    held = guard()
    assert asked(held, THREE, "waits") == 1.0
    while held.spending(THREE) == 1.0:
        compare(held, lineage(3), well=False)
    assert asked(held, THREE, "waits") == 2.0


def test_a_share_is_compared() -> None:
    rolls = iter(np.random.default_rng(0).random(10_000))
    chosen = guard(0.05, chance=lambda: float(next(rolls)))
    assert sum(chosen.wants(lineage()) for _ in range(10_000)) == pytest.approx(500, rel=0.2)


def test_with_a_share_of_0_nothing_is_compared_or_held() -> None:
    off = guard(0.0)
    assert not any(off.wants(lineage()) for _ in range(1000))
    assert asked(off, THREE) == off.spending(THREE) == 1.0
    assert off.trusts(lineage())


def test_an_engine_that_cannot_compare_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    unable = guard()
    with caplog.at_level(logging.WARNING):
        unable.cannot("its cache is off")
        unable.cannot("its cache is off")
    assert [record.message for record in caplog.records] == [
        "answers with reuse are not compared with cold ones: its cache is off"
    ]
    assert not unable.wants(lineage())


def test_the_first_tokens_of_the_answer_are_compared() -> None:
    comparison = added(guard(), lineage())
    assert comparison.answer.size == ANSWER_TOKENS
    assert comparison.text.tolist() == [*range(100), *range(ANSWER_TOKENS)]


def test_a_request_without_an_answer_is_not_compared() -> None:
    empty = guard()
    empty.add("r", namespace(), tokens(100), tokens(0), lineage(), "note")
    assert empty.next() is None


def test_what_came_of_it_is_in_the_audit_stream_and_in_the_metrics() -> None:
    audit = Recorder()
    told = guard(audit=audit)
    told.news.take()
    compare(told, lineage(3, 1.0), well=True)
    (event,) = audit.events
    assert isinstance(event, QualityCompared)
    assert (event.tier, event.kind, event.spending, event.spending_now) == ("balanced", "few_places", 1.0, 1.0)
    assert (event.agreement, event.positions) == (1.0, 2)
    assert event.kl == pytest.approx(0)
    news = told.news.take()
    assert news is not None
    assert news["compared"] == [("balanced", "few_places", 1.0, event.kl)]
    assert news["results"] == {"compared": 1}
    assert told.news.take() is None


def test_a_kind_that_falls_short_spends_more_and_is_declined_at_last(caplog: pytest.LogCaptureFixture) -> None:
    held = guard()
    seen = []
    with caplog.at_level(logging.INFO):
        while (spending := asked(held, THREE)) is not None:
            seen.append(spending)
            compare(held, lineage(3, spending), well=False)
    assert list(dict.fromkeys(seen)) == [1.0, 2.0, 4.0]
    assert len(seen) < 50
    assert asked(held, ONE) == 1.0, "other kinds go on"
    assert "plans of few_places are declined" in caplog.text
    news = held.news.take()
    assert news is not None
    assert news["spending"] == {"one_place": 1.0, "few_places": 0.0, "many_places": 1.0}


def test_what_was_computed_with_less_is_not_trusted() -> None:
    held = guard()
    assert held.trusts(lineage(3))
    fall_short(held, THREE)
    assert not held.trusts(lineage(3, 4.0))
    assert held.trusts(lineage(1))


def test_what_was_added_with_more_to_a_kind_that_needs_less_is_trusted_and_counts() -> None:
    held = guard()
    while held.spending(THREE) == 1.0:
        compare(held, lineage(3), well=False)
    book = LineageBook(trusts=held.trusts)
    opening = book.grow(namespace(), tokens(1000), Claim(0, 300, (Span(0, "a", 10, 200),), (), spending=1.0), 0)
    grown = book.grow(namespace(), tokens(1000), Claim(300, 600, tuple(THREE), (), spending=2.0), 320, opening)
    assert held.trusts(opening)
    assert held.trusts(grown)
    while held.spending(THREE) == 2.0:
        compare(held, grown, well=False)
    assert not held.trusts(grown)
    assert held.trusts(opening)


def test_every_trial_of_a_declined_kind_is_compared() -> None:
    held = guard(0.001, chance=lambda: 0.9)
    fall_short(held, THREE)
    assert not held.wants(lineage(3, 4.0))
    while asked(held, THREE) is None:
        pass
    assert held.wants(lineage(3, 4.0))
    assert not held.wants(lineage(1))


def test_without_a_target_it_is_measured_and_nothing_is_done() -> None:
    measuring = guard(target=0.0)
    for _ in range(500):
        compare(measuring, lineage(3), well=False)
    assert asked(measuring, THREE) == 1.0


def test_few_wait_and_none_for_long() -> None:
    clock = [0.0]
    waiting = guard(now=lambda: clock[0])
    for number in range(MOST_WAITING + 3):
        added(waiting, lineage(), request_id=str(number))
    first = waiting.next()
    assert first is not None
    assert first.request_id == "3", "the oldest are let go"
    clock[0] = LONGEST_WAIT_S + 1
    assert waiting.next() is None
    news = waiting.news.take()
    assert news is not None
    assert news["results"] == {"no_room": MOST_WAITING + 3}


def test_what_is_half_done_is_not_let_go_for_what_came_later() -> None:
    busy = guard()
    slow = added(busy, lineage(), request_id="slow")
    slow.reused = COLD
    for number in range(2 * MOST_WAITING):
        added(busy, lineage(), request_id=str(number))
    assert busy.next() is slow
    busy.finish(slow, COLD)
    news = busy.news.take()
    assert news is not None
    assert news["results"] == {"compared": 1, "no_room": MOST_WAITING + 1}


def test_a_purge_drops_what_waits_of_a_tenant() -> None:
    shared = guard()
    added(shared, lineage(), "a", "1")
    added(shared, lineage(), "b", "2")
    assert shared.held_by(tenant_of_salt("a")).comparisons == 1
    assert shared.forget_tenant(tenant_of_salt("a")).comparisons == 1
    left = shared.next()
    assert left is not None
    assert left.request_id == "2"
    assert shared.held_by(tenant_of_salt("a")).nothing


def test_what_was_dropped_under_way_is_not_judged() -> None:
    purged = guard()
    comparison = added(purged, lineage())
    comparison.reused = OTHER
    purged.forget_tenant(tenant_of_salt("a"))
    purged.news.take()
    purged.finish(comparison, COLD)
    assert purged.news.take() is None


def test_new_weights_start_over() -> None:
    changed = guard()
    fall_short(changed, THREE)
    added(changed, lineage())
    changed.new_weights()
    assert changed.next() is None
    assert asked(changed, THREE) == 1.0


def test_a_chance_is_drawn_for_each_request() -> None:
    draws = count()
    drawn = guard(0.5, chance=lambda: float(next(draws) % 2))
    assert [drawn.wants(lineage()) for _ in range(4)] == [True, False, True, False]
