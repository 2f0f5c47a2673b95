"""What requests wait for their donors is a part of what reuse costs: learned, weighed, and never waited for in vain."""

from __future__ import annotations

import math

import pytest

from semblend_core.contract import DeclineReason
from semblend_core.costs.fetch_times import FetchTimes
from semblend_core.serving.disk_waits import LONGEST_WAIT_S, MOST_AT_ONCE, DiskWaits

from .engines import NAMESPACE, SyntheticEngine, cold_work, cpu, passages

DISK_WAITS = "semblend_core.serving.disk_waits.time.monotonic"


def engine_that_reuses() -> SyntheticEngine:
    engine = SyntheticEngine(cpu)
    for _ in range(10):
        engine.serve_cold(6000)
        engine.serve(passages(6000, 1))
    assert engine.serve(passages(6000, 1)).claim is not None
    return engine


def test_nothing_is_expected_before_anything_was_seen() -> None:
    assert FetchTimes().expected(1000) == 0.0


def test_a_longer_fetch_takes_longer_and_a_shorter_one_a_quarter_at_least() -> None:
    times = FetchTimes()
    times.note(1000, 80.0)
    assert [times.expected(tokens) for tokens in (0, 10, 500, 1000, 2000)] == [0.0, 20.0, 40.0, 80.0, 160.0]


def test_one_that_took_far_longer_does_not_count_and_a_change_soon_does() -> None:
    times = FetchTimes()
    for took in (10.0, 12.0, 5000.0, 11.0, 9.0):
        times.note(1000, took)
    assert times.expected(1000) == 11.0
    for _ in range(5):
        times.note(1000, 900.0)
    assert times.expected(1000) == 900.0


def test_many_short_fetches_do_not_outweigh_what_a_long_one_took() -> None:
    times = FetchTimes()
    times.note(20_000, 60_000.0)
    for _ in range(50):
        times.note(300, 20_600.0)
    assert times.expected(19_000) < 60_000
    assert times.expected(250) < 20_600


def test_reuse_that_waits_longer_than_it_spares_is_soon_declined() -> None:
    engine = engine_that_reuses()
    engine.fetch_s = 2 * engine.takes(cold_work(0, 6000)) / 1e6
    reused = [engine.serve(passages(6000, 1)).claim is not None for _ in range(200)]
    assert sum(reused[20:]) <= 3, "more than a rare trial"


def test_a_tier_that_has_become_fast_is_found_out() -> None:
    engine = engine_that_reuses()
    engine.fetch_s = 2 * engine.takes(cold_work(0, 6000)) / 1e6
    for _ in range(40):
        engine.serve(passages(6000, 1))
    engine.fetch_s = 0.0
    reused = [engine.serve(passages(6000, 1)).claim is not None for _ in range(300)]
    assert all(reused[-20:])


def test_donors_that_come_in_time_cost_nothing() -> None:
    engine = engine_that_reuses()
    engine.fetch_s = 0.0
    assert sum(engine.serve(passages(6000, 1)).claim is None for _ in range(20)) <= 1, "more than a rare cold trial"


def test_a_wait_pays_for_as_long_as_reuse_spares() -> None:
    engine = engine_that_reuses()
    claimed = engine.gate.choose("asked", NAMESPACE, passages(6000, 1), engine.claim_for)
    assert not isinstance(claimed, DeclineReason)
    cold_s = engine.takes(cold_work(0, 6000)) / 1e6
    assert 0.5 * cold_s < engine.gate.may_wait_s("asked") < cold_s
    assert engine.gate.may_wait_s("unknown") == math.inf
    off = SyntheticEngine(cpu, settings={"cost_gate": False}).gate
    off.waited("asked", 5900, 1.0)
    assert off.may_wait_s("asked") == math.inf


def test_what_is_held_up_longer_than_that_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_that_reuses()
    engine.gate.choose("asked", NAMESPACE, passages(6000, 1), engine.claim_for)
    pays, now = engine.gate.may_wait_s("asked"), [100.0]
    monkeypatch.setattr(DISK_WAITS, lambda: now[0])
    monkeypatch.setattr("semblend_core.serving.disk_waits.LONGEST_WAIT_S", 100 * pays)
    waits = DiskWaits(engine.gate)
    assert waits.may_fetch("asked")
    now[0] += 10 * pays
    assert waits.coming("asked", 5900, its_turn=False) == "coming", "it waits behind others anyway"
    assert waits.coming("asked", 5900, its_turn=True) == "coming"
    now[0] += 0.9 * pays
    assert waits.coming("asked", 5900, its_turn=True) == "coming"
    now[0] += 0.2 * pays
    assert waits.coming("asked", 5900, its_turn=True) is DeclineReason.LOAD_FAILED


def test_who_waits_for_its_turn_to_fetch_waits_as_long_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(DISK_WAITS, lambda: now[0])
    waits = DiskWaits(SyntheticEngine(cpu).gate)
    for number in range(MOST_AT_ONCE):
        assert waits.may_fetch(f"r{number}")
    assert not waits.may_fetch("late")
    now[0] = 0.9 * LONGEST_WAIT_S
    assert waits.coming("late", 100, its_turn=True) == "coming"
    now[0] = 1.1 * LONGEST_WAIT_S
    assert waits.coming("late", 100, its_turn=True) is DeclineReason.ALLOCATION_FAILED


def test_each_wait_is_learned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, now = SyntheticEngine(cpu), [0.0]
    told: list[float] = []
    monkeypatch.setattr(engine.gate, "waited", lambda _, tokens, seconds: told.append(seconds))
    monkeypatch.setattr(DISK_WAITS, lambda: now[0])
    waits = DiskWaits(engine.gate)
    waits.came("never sent for", 10)
    waits.may_fetch("r")
    waits.coming("r", 10, its_turn=True)
    now[0] = 0.5
    for _ in range(3):
        waits.came("r", 10)
    waits.end("r")
    assert told == [0.5]
