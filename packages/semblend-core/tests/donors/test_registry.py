"""Donors stay within their budgets, leave in order, and stay while a plan holds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semblend_core.contract import DeclineReason, TokenIds
from semblend_core.discovery import Geometry
from semblend_core.donors import DonorRecord, DonorRegistry
from semblend_core.eviction import POLICY_NAMES

NAMESPACES = ("a", "b")


def text(seed: int, size: int = 100) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 2**31 - 1, size).astype(np.int32)


def found(registry: DonorRegistry, namespace: str, query: TokenIds) -> set[int]:
    runs = registry.find(namespace, query, 31, None)
    assert runs is not None
    return {run.donor for run in runs}


def serial_of(registry: DonorRegistry, donor_id: str, namespace: str = "a") -> int:
    record = registry.record_of(namespace, donor_id)
    assert record is not None
    return record.serial


def keep(registry: DonorRegistry, *donor_ids: str, size: int = 100) -> list[str]:
    """Register each id with a text of its own; returns the ids that this cost."""
    gone = []
    for donor_id in donor_ids:
        reason, evicted = registry.register("a", donor_id, text(sum(donor_id.encode()), size))
        assert reason is None
        gone += [record.donor_id for record in evicted]
    return gone


class RegistryMachine(RuleBasedStateMachine):
    """Any mix of registering, pinning, unpinning and forgetting keeps budgets, pins and answers right."""

    @initialize(budget=st.integers(8_000, 200_000), most=st.integers(1, 12), eviction=st.sampled_from(POLICY_NAMES))
    def start(self, budget: int, most: int, eviction: str) -> None:
        self.registry = DonorRegistry(
            geometry=Geometry.for_min_span(16), max_bytes=budget, max_donors=most, eviction=eviction
        )
        self.kept: dict[tuple[str, str], TokenIds] = {}
        self.held: list[list[DonorRecord]] = []
        self.texts = 0

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        name=st.integers(0, 15),
        size=st.integers(31, 1500),
    )
    def register(self, namespace: str, name: int, size: int) -> None:
        self.texts += 1
        key, tokens = (namespace, str(name)), text(self.texts, size)
        pinned = {record.serial for records in self.held for record in records}
        reason, evicted = self.registry.register(*key, tokens)
        assert not pinned & {record.serial for record in evicted}, "a pinned donor was evicted"
        for record in evicted:
            del self.kept[record.namespace, record.donor_id]
        if reason is None:
            assert key not in self.kept
            self.kept[key] = tokens
        else:
            known = key in self.kept
            assert reason is (DeclineReason.DUPLICATE_DONOR if known else DeclineReason.DONOR_TOO_LARGE)

    @rule(namespace=st.sampled_from(NAMESPACES), name=st.integers(0, 15))
    def forget(self, namespace: str, name: int) -> None:
        known = self.kept.pop((namespace, str(name)), None) is not None
        assert self.registry.forget(namespace, str(name)) is known
        assert self.registry.forget(namespace, str(name)) is False

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        if self.kept:
            keys = data.draw(st.lists(st.sampled_from(sorted(self.kept)), max_size=3))
            serials = [serial_of(self.registry, name, namespace) for namespace, name in keys]
            records = self.registry.pin(serials)
            assert records is not None
            self.held.append(records)

    @rule()
    def unpin(self) -> None:
        if self.held:
            self.registry.unpin(self.held.pop())

    @invariant()
    def is_as_the_model_says(self) -> None:
        self.registry.check_integrity()
        assert len(self.registry) == len(self.kept) <= self.registry.max_donors
        assert self.registry.nbytes <= self.registry.max_bytes or not self.kept
        for (namespace, name), tokens in self.kept.items():
            assert serial_of(self.registry, name, namespace) in found(self.registry, namespace, tokens)
        for namespace in NAMESPACES:
            assert self.registry.has_donors(namespace) == any(key[0] == namespace for key in self.kept)


RegistryMachine.TestCase.settings = settings(deadline=None, max_examples=50, stateful_step_count=25)
TestRegistry = RegistryMachine.TestCase


@settings(deadline=None, max_examples=40)
@given(st.integers(6_000, 300_000), st.lists(st.integers(20, 4000), max_size=40))
def test_the_byte_budget_is_never_exceeded(budget: int, sizes: list[int]) -> None:
    registry = DonorRegistry(max_bytes=budget)
    for number, size in enumerate(sizes):
        reason, _ = registry.register("a", str(number), text(number, size))
        assert reason in (None, DeclineReason.DONOR_TOO_LARGE)
        assert registry.nbytes <= budget or len(registry) == 0
    registry.check_integrity()


def test_the_donor_budget_is_never_exceeded_and_the_least_recently_used_goes() -> None:
    registry = DonorRegistry(max_donors=3)
    assert keep(registry, "x", "y", "z") == []
    records = registry.pin([serial_of(registry, "x")])
    assert records is not None
    registry.unpin(records)
    assert keep(registry, "new") == ["y"]
    assert keep(registry, "newer", "newest") == ["z", "x"]


def test_the_least_often_used_goes_and_among_equals_the_one_untouched_longest() -> None:
    registry = DonorRegistry(max_donors=3, eviction="lfu")
    keep(registry, "x", "y", "z")
    for name in ("x", "x", "y", "z"):
        registry.unpin(registry.pin([serial_of(registry, name)]) or [])
    assert keep(registry, "new") == ["y"]
    assert keep(registry, "newer") == ["new"], "a donor that was never used goes before those that were"


@pytest.mark.parametrize("eviction", ["lru", "lfu"])
def test_a_pinned_donor_stays_and_an_unpinned_one_may_go(eviction: str) -> None:
    registry = DonorRegistry(max_donors=2, eviction=eviction)
    keep(registry, "x", "y")
    twice = [registry.pin([serial_of(registry, "x")]) or [] for _ in range(2)]
    assert keep(registry, "z") == ["y"]
    registry.unpin(twice[0])
    assert keep(registry, "w") == ["z"], "it was pinned twice and unpinned once"
    registry.unpin(twice[1])
    for _ in range(3):
        registry.unpin(registry.pin([serial_of(registry, "w")]) or [])
    assert keep(registry, "v") == ["x"]
    registry.check_integrity()


def test_an_offer_is_declined_when_everything_is_pinned() -> None:
    registry = DonorRegistry(max_donors=2)
    keep(registry, "x", "y")
    records = registry.pin([serial_of(registry, "x"), serial_of(registry, "y")])
    assert registry.register("a", "z", text(9)) == (DeclineReason.DONOR_TOO_LARGE, [])
    assert len(registry) == 2
    registry.unpin(records or [])
    assert registry.register("a", "z", text(9))[0] is None


def test_an_offer_that_cannot_fit_beside_the_pinned_costs_nobody_their_place() -> None:
    registry = DonorRegistry(max_bytes=100_000)
    keep(registry, "big", "bigger", size=6_400)
    keep(registry, *"abcdef")
    assert registry.pin([serial_of(registry, "big"), serial_of(registry, "bigger")])
    assert registry.register("a", "huge", text(1, 7_000)) == (DeclineReason.DONOR_TOO_LARGE, [])
    assert len(registry) == 8
    registry.check_integrity()


def test_a_donor_of_more_than_half_the_budget_is_too_large() -> None:
    registry = DonorRegistry(max_bytes=100_000)
    keep(registry, "x")
    assert registry.register("a", "huge", text(1, 13_000)) == (DeclineReason.DONOR_TOO_LARGE, [])
    assert registry.record_of("a", "x") is not None
    assert registry.register("b", "huge", text(1, 13_000))[0] is DeclineReason.DONOR_TOO_LARGE
    assert not registry.has_donors("b"), "a refused donor leaves no namespace behind"


def test_a_large_donor_still_fits_after_many_small_ones() -> None:
    """Small donors of rising ids keep many fingerprints; the table they needed must not stay for ever."""
    registry = DonorRegistry(geometry=Geometry(gram=2, window=1), max_bytes=400_000)
    for number in range(400):
        registry.register("a", str(number), text(number, 60))
    reason, _ = registry.register("a", "large", text(1, 3_000))
    assert reason is None
    registry.check_integrity()


def test_the_same_id_twice_in_a_namespace_is_refused() -> None:
    registry = DonorRegistry()
    keep(registry, "x")
    assert registry.register("a", "x", text(5)) == (DeclineReason.DUPLICATE_DONOR, [])
    assert registry.register("b", "x", text(5))[0] is None
    registry.forget("a", "x")
    assert registry.register("a", "x", text(6))[0] is None
    assert found(registry, "a", text(6)) == {serial_of(registry, "x")}


def test_namespaces_see_their_own_donors_only() -> None:
    registry = DonorRegistry()
    for namespace in ("a", "b"):
        registry.register(namespace, "x", text(1))
    assert found(registry, "a", text(1)) == {serial_of(registry, "x", "a")}
    assert found(registry, "c", text(1)) == set()
    registry.forget("a", "x")
    assert found(registry, "a", text(1)) == set()
    assert not registry.has_donors("a")
    assert found(registry, "b", text(1)) == {serial_of(registry, "x", "b")}


def test_a_donor_forgotten_while_pinned_is_gone_at_once_and_its_pin_is_harmless() -> None:
    registry = DonorRegistry(max_donors=2)
    keep(registry, "x")
    serial = serial_of(registry, "x")
    records = registry.pin([serial])
    assert records is not None
    assert registry.forget("a", "x")
    assert found(registry, "a", text(sum(b"x"))) == set()
    assert registry.pin([serial]) is None
    keep(registry, "x", "y")
    registry.unpin(records)
    assert keep(registry, "z") == ["x"], "the old pin does not hold the new donor of that name"
    registry.check_integrity()


def test_pinning_is_all_or_nothing() -> None:
    registry = DonorRegistry(max_donors=2)
    keep(registry, "x", "y")
    known = serial_of(registry, "x")
    assert registry.pin([known, 999]) is None
    assert keep(registry, "z") == ["x"], "nothing was pinned, nothing was used"
    assert registry.pin([]) == []


def test_a_newer_donor_is_preferred_and_a_gone_one_never() -> None:
    registry = DonorRegistry()
    keep(registry, "x", "y")
    x, y = serial_of(registry, "x"), serial_of(registry, "y")
    assert registry.preference(y) > registry.preference(x) > registry.preference(999)


def test_a_donor_that_is_cheap_to_compute_goes_first() -> None:
    registry = DonorRegistry(max_donors=2, eviction="gdsf")
    for donor_id, saved_ms in (("dear", 50.0), ("cheap", 5.0)):
        assert registry.register("a", donor_id, text(sum(donor_id.encode())), saved_ms)[0] is None
    assert keep(registry, "new") == ["cheap"]


def test_clearing_forgets_everyone_and_serials_go_on() -> None:
    registry = DonorRegistry()
    keep(registry, "x", "y")
    before = serial_of(registry, "y")
    held = registry.pin([before])
    registry.clear()
    registry.check_integrity()
    assert len(registry) == 0
    assert not registry.has_donors("a")
    assert registry.pin([before]) is None
    keep(registry, "y")
    assert serial_of(registry, "y") > before
    registry.unpin(held or [])
    registry.check_integrity()
