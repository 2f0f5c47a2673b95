"""Each policy against a model that looks at every key, and what holds for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.eviction import POLICY_NAMES, START_WEIGHTS, Entry, policy_named

CAPACITY = 40
KINDS = ["system", "user", "code", "something new"]


@dataclass
class Seen:
    """What the models know of a key."""

    entry: Entry
    came: int
    used: int
    now: float
    uses: int = 1


@dataclass
class Model:
    """Keeps everything, scores every key anew at each eviction: the lowest goes, among equals the one used longest ago.

    ``score(seen, clock, now)``.
    """

    score: Callable[[Seen, int, float], float]
    keys: dict[int, Seen] = field(default_factory=dict)

    def victim(self, clock: int, now: float, spared: Callable[[int], bool]) -> int | None:
        candidates = [key for key in self.keys if not spared(key)]
        return min(
            candidates, key=lambda key: (self.score(self.keys[key], clock, now), self.keys[key].used), default=None
        )


def _static(seen: Seen, clock: int, now: float) -> float:
    entry = seen.entry
    weight = START_WEIGHTS.get(entry.kind, START_WEIGHTS["other"])
    return weight * max(1, math.log(1 + seen.uses)) * max(1, entry.saved_ms) / max(1, math.sqrt(entry.tokens))


def _priced(seen: Seen, clock: int, now: float) -> float:
    level = round(math.log2(seen.entry.price_ms / seen.entry.bytes))
    return -(clock + 1 - seen.used) / 2.0**level


def _size_aware(seen: Seen, clock: int, now: float) -> float:
    return -(clock + 1 - seen.used) * 2 ** seen.entry.bytes.bit_length()


MODELS: dict[str, Callable[[Seen, int, float], float]] = {
    "fifo": lambda seen, clock, now: seen.came,
    "lru": lambda seen, clock, now: seen.used,
    "lfu": lambda seen, clock, now: seen.uses,
    "size_aware_lru": _size_aware,
    "priced_lru": _priced,
    "static_semantic": _static,
}

entries = st.builds(
    Entry,
    tokens=st.integers(1, 3000),
    bytes=st.integers(1, 12),
    kind=st.sampled_from(KINDS),
    saved_ms=st.sampled_from([0.0, 3.0, 250.0]),
)
accesses = st.lists(st.tuples(st.integers(0, 25), entries, st.floats(0, 200), st.booleans()), min_size=1, max_size=120)


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=60)
@given(accesses=accesses, pinned=st.sets(st.integers(0, 25), max_size=2))
def test_who_goes_is_who_the_model_says(name: str, accesses: list[Any], pinned: set[int]) -> None:
    policy, model = policy_named(name, capacity=CAPACITY), Model(MODELS[name])
    now = 0.0
    for clock, (key, entry, pause, forget) in enumerate(accesses, 1):
        now += pause
        if forget:
            policy.remove(key, evicted=False)
            model.keys.pop(key, None)
        if key in model.keys:
            seen = model.keys[key]
            seen.used, seen.now, seen.uses, seen.entry = clock, now, seen.uses + 1, entry
            policy.touch(key, now, entry)
        else:
            model.keys[key] = Seen(entry, clock, clock, now)
            assert policy.admit(key, entry, now)
        while sum(seen.entry.bytes for seen in model.keys.values()) > CAPACITY:
            spared = lambda each, key=key: each == key or each in pinned  # noqa: E731
            expected = model.victim(clock, now, spared)
            assert policy.victim(spared) == expected
            if expected is None:
                break
            policy.remove(expected)
            del model.keys[expected]
        policy.check_integrity()
        assert set(policy) == set(model.keys)


@settings(deadline=None, max_examples=60)
@given(accesses=accesses)
def test_the_adaptive_policy_scores_as_published(accesses: list[Any]) -> None:
    """Its weights are taken as they are; everything else is computed anew for every key."""
    policy: Any = policy_named("adaptive_semantic", capacity=CAPACITY)
    uses: dict[Any, int] = {}
    used: dict[Any, float] = {}
    now = 0.0
    for key, entry, pause, _ in accesses:
        now += pause
        if key in policy:
            policy.touch(key, now, entry)
            uses[key] += 1
        else:
            policy.admit(key, entry, now)
            uses[key] = 1
        used[key] = now
        while policy.held > CAPACITY:
            victim = policy.victim(key.__eq__)
            scores = {
                each: _adaptive(policy.entries[each], policy.weights, uses[each], now - used[each])
                for each in policy
                if each != key
            }
            if victim is None:
                assert not scores
                break
            assert scores[victim] == pytest.approx(min(scores.values()))
            policy.remove(victim)
        policy.check_integrity()


def _adaptive(entry: Entry, weights: dict[str, float], uses: int, age: float) -> float:
    weight = weights[entry.kind if entry.kind in weights else "other"]
    worth = max(1, 1 + math.log(1 + uses) + 0.25 * uses) * max(0.05, math.exp(-age / 60))
    return float(weight * worth * max(1, entry.saved_ms) / max(1, entry.tokens**0.15))


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(deadline=None, max_examples=40)
@given(accesses=accesses, pinned=st.sets(st.integers(0, 25), max_size=5))
def test_any_policy_keeps_its_budget_its_books_and_the_pinned(name: str, accesses: list[Any], pinned: set[int]) -> None:
    policy = policy_named(name, capacity=CAPACITY)
    now = 0.0
    held: set[Any] = set()
    for key, entry, pause, forget in accesses:
        now += pause
        if forget:
            policy.remove(key, evicted=False)
            held.discard(key)
        if key in held:
            policy.touch(key, now, entry)
        elif policy.admit(key, entry, now):
            held.add(key)
        while policy.held > CAPACITY:
            victim = policy.victim(lambda each, key=key: each == key or each in pinned)
            if victim is None:
                assert held <= pinned | {key}
                break
            assert victim in held - pinned - {key}
            policy.remove(victim)
            held.remove(victim)
        policy.check_integrity()
        assert set(policy) == held
        assert len(policy) == len(held)
    order = policy.order()
    assert sorted(order) == sorted(held)
    assert set(policy) == held, "asking for the order changes nothing"
    policy.forget_ghosts()
    assert policy.ghosts == 0
    policy.check_integrity()


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_unknown_keys_are_ignored(name: str) -> None:
    policy = policy_named(name)
    policy.touch("nobody", 1.0)
    policy.remove("nobody")
    assert policy.victim() is None
    assert len(policy) == 0


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_what_is_remembered_of_those_that_went_is_bounded(name: str) -> None:
    policy = policy_named(name, capacity=50)
    for number in range(8_000):
        if policy.admit(number, Entry(), number / 10):
            while policy.held > 50:
                policy.remove(policy.victim(number.__eq__))
    assert len(policy) == 50
    assert policy.ghosts <= 1024 + 10 * 50


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(ValueError, match="no eviction policy is called 'random'; use one of fifo, lru"):
        policy_named("random")


@pytest.mark.parametrize("options", [{"capacity": 0}, {"capacity": 5, "small": 1.5}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        policy_named("s3fifo", **options)


def test_a_return_after_eviction_raises_the_weight_of_its_kind() -> None:
    policy: Any = policy_named("adaptive_semantic", capacity=1)
    policy.admit("a", Entry(kind="code", tokens=50), 1.0)
    policy.remove("a")
    before = policy.weights["code"]
    policy.admit("b", Entry(kind="user"), 1.0)
    policy.admit("a", Entry(kind="code", tokens=50), 1.0)
    assert policy.weights["code"] == pytest.approx(before + 0.18 + 0.05)
    policy.touch("a", 1.0)
    assert policy.weights["code"] == pytest.approx(before + 0.18 + 0.05 + 0.01 + 50 / 4000)
    weights = dict(policy.weights)
    policy.touch("b", 2.0)
    policy.touch("b", 3.0)
    assert policy.weights["code"] == pytest.approx(weights["code"] * 0.995), "nobody used it in that moment"


@pytest.mark.parametrize("name", ["priced_lru", "gdsf", "cost_aware"])
def test_what_a_newer_key_holds_too_is_cheap_to_lose(name: str) -> None:
    policy = policy_named(name, capacity=300, may_refuse=False)
    for now, key in enumerate("abc"):
        policy.admit(key, Entry(tokens=100, bytes=100), now)
    policy.touch("b", 3)
    policy.note_copied("b", 90)
    policy.note_copied("b", 20)  # Less than is known.
    policy.note_copied("unknown", 90)
    policy.check_integrity()
    assert policy.victim() == "b", "the others are older, and nobody else holds them"


def test_among_keys_of_one_age_by_price_the_least_recently_used_goes() -> None:
    policy = policy_named("priced_lru")
    cheap, dear = Entry(saved_ms=1.0), Entry(saved_ms=2.0)
    for key, entry in (("gone", cheap), ("dear", dear), ("one", cheap), ("cheap", cheap), ("two", cheap)):
        policy.admit(key, entry, 0.0)
    for key in ("gone", "one"):
        policy.remove(key)
    assert policy.victim() == "dear", "four accesses ago at twice the price, the other two accesses ago"


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([None, 40, 80, 97])), max_size=60))
def test_keys_whose_price_fell_stand_in_the_order_of_their_last_use(steps: list[tuple[int, int | None]]) -> None:
    policy, model = policy_named("priced_lru"), Model(_priced)
    clock = 0
    for key, copied in steps:
        if copied is not None:
            policy.note_copied(key, copied)
            if key in model.keys:
                model.keys[key].entry = policy.entries[key]
            continue
        clock += 1
        entry = Entry(tokens=100) if key not in model.keys else model.keys[key].entry
        model.keys[key] = Seen(entry, clock, clock, 0.0)
        policy.admit(key, entry, 0.0)
        policy.check_integrity()
    order = []
    while (victim := model.victim(clock, 0.0, lambda key: False)) is not None:
        order.append(victim)
        del model.keys[victim]
    assert policy.order() == order


def test_recency_alone_does_not_ask_what_a_loss_costs() -> None:
    policy = policy_named("lru")
    for now, key in enumerate("ab"):
        policy.admit(key, Entry(tokens=100), now)
    policy.note_copied("b", 90)
    assert policy.order() == ["a", "b"]


def test_a_price_that_is_not_known_goes_by_the_tokens_and_by_what_nobody_else_holds() -> None:
    assert Entry(tokens=50, saved_ms=8.0).price_ms == 8.0
    assert Entry(tokens=50, saved_ms=8.0, copied=25).price_ms == 4.0
    assert 0 < Entry(tokens=50, copied=50).price_ms < Entry(tokens=50, copied=25).price_ms < Entry(tokens=50).price_ms


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_more_than_the_budget_may_be_held_for_a_while(name: str) -> None:
    """As by an owner that takes out the excess one by one, once it has admitted all."""
    policy = policy_named(name, capacity=10, may_refuse=False)
    for key in range(9):
        policy.admit(key, Entry(bytes=10, tokens=10), float(key))
    while policy.held > 10:
        victim = policy.victim()
        assert victim is not None
        policy.remove(victim)
        policy.check_integrity()
    assert len(policy) == 1


def test_the_price_of_what_has_no_tokens() -> None:
    assert Entry(tokens=0, saved_ms=5.0, copied=3).price_ms == pytest.approx(0.1)


def test_long_pauses_between_two_looks_do_not_overflow_what_a_saving_counts() -> None:
    policy = policy_named("cost_aware", capacity=10**9)
    policy.admit("a", Entry(), 0.0)
    policy._look_at = 10**9  # As after a look at millions of keys, all of which went since.
    for now in range(100_000):
        policy.touch("a", float(now))
    assert all(math.isfinite(saved) for saved in policy._saved)
