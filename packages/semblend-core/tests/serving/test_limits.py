"""What an operator allows one tenant: for how long, and how much. Time is what the test says it is."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from semblend_core import (
    DeclineReason,
    LookupRequest,
    Namespace,
    SelfTestResult,
    SelfTestState,
    Settings,
    Span,
    TenantReport,
    TokenIds,
    create_provider,
    donor_id_of,
    read_audit,
    tenant_of_salt,
)
from semblend_core.serving import Claim, DonorKeeper, LineageBook, RequestLife, SelfTest
from semblend_core.serving.ages import DonorAges


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = time.time()
        monkeypatch.setattr(time, "time", lambda: self._now)

    def later(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def namespace(salt: str | None = "a") -> Namespace:
    return Namespace(
        model="m", revision="r", tokenizer="t", dtype="f", kv_layout="l", block_size=16, adapter=None, salt=salt
    )


def prompt(seed: int, tokens: int = 200) -> TokenIds:
    ids = np.random.default_rng(seed).integers(0, 50_000, tokens).astype(np.int32)
    ids.flags.writeable = False
    return ids


def keeper_with(**settings: object) -> DonorKeeper:
    chosen = Settings(min_span_tokens=16, lookup_budget_ms=600_000.0, **settings)  # type: ignore[arg-type]
    provider = create_provider(chosen, engine="test")
    self_test = SelfTest(1, provider.note_self_test)
    self_test.hear({0: SelfTestResult(SelfTestState.PASSED)})
    return DonorKeeper(provider, chosen, self_test)


def keep(keeper: DonorKeeper, seed: int, salt: str = "a", tokens: int = 200) -> bool:
    """Whether the prompt was captured."""
    life = RequestLife(None, f"r{seed}", namespace(salt), prompt(seed, tokens))
    kept = keeper.decide(life)
    keeper.durable((life.namespace.digest, donor_id_of(life.token_ids)), frozenset([0]))
    return kept is not None


def held(keeper: DonorKeeper, *seeds: int, salt: str = "a") -> list[int]:
    return [seed for seed in seeds if (namespace(salt).digest, donor_id_of(prompt(seed))) in keeper.donors]


def test_a_donor_that_is_too_old_is_not_found_and_its_bytes_are_dropped(clock: Clock) -> None:
    keeper = keeper_with(max_age_s=100)
    keep(keeper, 1)
    clock.later(60)
    keep(keeper, 2)
    clock.later(41)
    keeper.donors.drop_expired()
    assert held(keeper, 1, 2) == [2]
    assert [donor_id for _, donor_id in keeper.take_forgotten()] == [donor_id_of(prompt(1))]
    asked = np.concatenate([prompt(999, 50), prompt(1)])
    assert keeper.donors._provider.lookup(LookupRequest("r", namespace(), asked, 0)).plan is None
    assert keeper.held_by(tenant_of_salt("a")).oldest_s == 41


def test_the_record_tells_age_and_quota_from_want_of_room(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    keeper = keeper_with(max_age_s=100, tenant_tokens=500, audit_path=str(path))
    for seed in (1, 2, 3):
        keep(keeper, seed)
    clock.later(101)
    keeper.lost((namespace().digest, donor_id_of(prompt(2))), DeclineReason.DONOR_EVICTED)  # The store was faster.
    keeper.donors.drop_expired()
    keeper.donors._provider.close()
    causes = [record["cause"] for record in read_audit(path).records if record["event"] == "evicted"]
    assert causes == ["budget", "expired", "expired"]


def test_use_does_not_make_it_younger(clock: Clock) -> None:
    keeper = keeper_with(max_age_s=100)
    keep(keeper, 1)
    clock.later(99)
    assert keeper.donors.get(namespace(), donor_id_of(prompt(1))) is not None
    clock.later(2)
    keeper.donors.drop_expired()
    assert held(keeper, 1) == []


def test_without_a_greatest_age_nothing_grows_too_old(clock: Clock) -> None:
    keeper = keeper_with()
    keep(keeper, 1)
    clock.later(1e9)
    keeper.donors.drop_expired()
    assert held(keeper, 1) == [1]


def test_a_restart_does_not_make_it_younger_nor_what_grows_from_it(clock: Clock) -> None:
    keeper = keeper_with(max_age_s=100)
    keep(keeper, 1)
    keeper.recovered({0: [(namespace().digest, donor_id_of(prompt(2)), prompt(2), time.time() - 90)]})
    assert keeper.held_by(tenant_of_salt("a")).oldest_s == 90
    keeper.meet(namespace())
    assert keeper.held_by(tenant_of_salt("a")).oldest_s == 90
    book = LineageBook(100, keeper.donors.born)
    claim = Claim(0, 160, (Span(40, donor_id_of(prompt(2)), 0, 100),), ((0, 40),))
    lineage = book.grow(namespace(), prompt(5), claim, 32)
    clock.later(11)
    keeper.donors.drop_expired()
    assert held(keeper, 1, 2) == [1]
    assert book.forget_expired() == [lineage]


def test_a_lineage_is_as_old_as_the_oldest_donor_in_it(clock: Clock) -> None:
    keeper = keeper_with(max_age_s=100)
    keep(keeper, 1)
    book = LineageBook(100, keeper.donors.born)
    clock.later(60)
    keep(keeper, 2)

    def claim(seed: int) -> Claim:
        return Claim(0, 160, (Span(40, donor_id_of(prompt(seed)), 0, 100),), ((0, 40),))

    old = book.grow(namespace(), prompt(5), claim(1), 32)
    young = book.grow(namespace(), prompt(6), claim(2), 32)
    child = book.grow(namespace(), prompt(5), claim(2), 64, old)
    for lineage in (old, young, child):
        lineage.confirmed = True
    assert book.forget_expired() == []
    clock.later(41)
    assert {lineage.name for lineage in book.forget_expired()} == {old.name, child.name}
    assert list(book.behind(namespace(), prompt(5), 64)) == []
    assert list(book.behind(namespace(), prompt(6), 64)) == [young]
    clock.later(60)
    assert book.forget_expired() == [young]


def test_at_its_quota_a_tenant_pays_with_its_own_oldest() -> None:
    keeper = keeper_with(tenant_tokens=500)
    keep(keeper, 1, "b")
    for seed in (1, 2, 3):
        keep(keeper, seed)
    assert held(keeper, 1, 2, 3) == [2, 3]
    assert held(keeper, 1, salt="b") == [1]
    assert [namespace for namespace, _ in keeper.take_forgotten()] == [namespace()]


def test_room_is_made_before_the_bytes_come() -> None:
    keeper = keeper_with(tenant_tokens=500)
    for seed in (1, 2):
        keep(keeper, seed)
    assert keeper.take_forgotten() == []
    keeper.decide(RequestLife(None, "r", namespace(), prompt(3)))
    assert [donor_id for _, donor_id in keeper.take_forgotten()] == [donor_id_of(prompt(1))]


def test_a_prompt_above_the_quota_is_not_captured() -> None:
    keeper = keeper_with(tenant_tokens=150)
    assert not keep(keeper, 1)
    assert keeper.donors._provider.stats().declines == {DeclineReason.DONOR_TOO_LARGE: 1}
    assert keep(keeper, 2, tokens=150)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60), st.integers(64, 300)), max_size=40))
def test_nobody_holds_more_than_its_quota_nor_pays_for_others(offers: list[tuple[str, int, int]]) -> None:
    keeper = keeper_with(tenant_tokens=600)
    mine: dict[str, int] = {}
    for salt, seed, tokens in offers:
        others = {each: keeper.held_by(tenant_of_salt(each)).tokens for each in "abc" if each != salt}
        keep(keeper, seed, salt, tokens)
        assert {each: keeper.held_by(tenant_of_salt(each)).tokens for each in others} == others
        mine[salt] = keeper.held_by(tenant_of_salt(salt)).tokens
        assert mine[salt] <= 600
    keeper.donors._provider.check_integrity()


class Moment(float):
    """Counts how often any is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Moment.compared += 1
        return super().__eq__(other)

    def __lt__(self, other: float) -> bool:
        Moment.compared += 1
        return super().__lt__(other)

    __hash__ = float.__hash__


def test_a_tenants_oldest_is_known_however_many_it_has() -> None:
    ages, tenant = DonorAges(), tenant_of_salt("a")
    for number in range(1000):
        ages.add((namespace().digest, str(number)), 10, Moment(number))
    Moment.compared = 0
    for number in range(100):
        oldest = ages.oldest_of(tenant)
        assert oldest == (namespace().digest, str(number))
        ages.remove(oldest)
    assert Moment.compared < 100 * 100, "each goes by halves, not through all"
    assert ages.report(tenant, 1000.0) == TenantReport(donors=900, tokens=9000, oldest_s=900.0)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 5))))
def test_ages_are_those_of_the_donors_there_are(steps: list[tuple[bool, str, int, int]]) -> None:
    ages, there = DonorAges(), {}
    for comes, salt, number, born in steps:
        name = (namespace(salt).digest, str(number))
        if comes and name not in there:
            there[name] = born
            ages.add(name, number, born)
        elif not comes:
            there.pop(name, None)
            ages.remove(name)
        oldest = ages.oldest_of(tenant_of_salt("a"))
        theirs = {each: born for each, born in there.items() if each[0] == namespace("a").digest}
        assert (oldest is None) == (not theirs)
        assert oldest is None or theirs[oldest] == min(theirs.values())
        assert set(ages.names_of(tenant_of_salt("a"))) == set(theirs)
        assert ages.tokens_of(tenant_of_salt("a")) == sum(int(number) for _, number in theirs)
        assert ages.born_before(3) is None or there[ages.born_before(3)] == min(there.values())
