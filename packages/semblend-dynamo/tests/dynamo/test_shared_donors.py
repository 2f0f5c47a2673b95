"""Replicas end up with the same donors, however their events arrive."""

import itertools
from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semblend_core import Settings, TokenIds, as_token_ids, donor_id_of
from semblend_dynamo.dynamo.events import (
    Change,
    DonorEvent,
    DonorEvicted,
    DonorRegistered,
    DonorsPurged,
    GenerationReset,
)
from semblend_dynamo.dynamo.requests import RequestReader
from semblend_dynamo.dynamo.residency import WorkerRank
from semblend_dynamo.dynamo.shared_donors import Listeners, SharedDonors
from semblend_dynamo.placement import DonorBook, DonorKey

READER = RequestReader("model", 16)
TENANTS = [READER.namespace(salt, None) for salt in ("a", "b")]
PROMPTS: list[TokenIds] = [as_token_ids(np.random.default_rng(n).integers(0, 1000, 80)) for n in range(4)]
WORKER = WorkerRank(5, 0)


def replica(publish: Callable[[DonorEvent], None] = lambda event: None, **settings: int) -> SharedDonors:
    clock = itertools.count(1)
    return SharedDonors(DonorBook(Settings(**settings)), publish, clock_ns=lambda: next(clock))  # type: ignore[arg-type]


def told(events: list[DonorEvent]) -> SharedDonors:
    made = replica()
    for event in events:
        made.apply(event)
    made._book.check_integrity()
    return made


def key(tenant: int, prompt: int) -> DonorKey:
    return DonorKey(TENANTS[tenant].digest, donor_id_of(PROMPTS[prompt]))


@st.composite
def change(draw: st.DrawFn) -> Change:
    generation = draw(st.integers(0, 2))
    tenant, prompt = draw(st.integers(0, 1)), draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["registered", "registered", "registered", "evicted", "purged", "reset"]))
    if kind == "registered":
        return DonorRegistered(TENANTS[tenant], donor_id_of(PROMPTS[prompt]), PROMPTS[prompt], generation)
    if kind == "evicted":
        return DonorEvicted(key(tenant, prompt), generation)
    if kind == "purged":
        return DonorsPurged(draw(st.sampled_from([None, TENANTS[tenant].salt_digest])), generation)
    return GenerationReset(generation)


@given(st.lists(change(), max_size=12), st.randoms(use_true_random=False), st.data())
def test_order_and_duplicates_do_not_matter(changes: list[Change], dice: object, data: st.DataObject) -> None:
    events = [DonorEvent(number + 1, *WORKER, each) for number, each in enumerate(changes)]
    repeated = events + data.draw(st.lists(st.sampled_from(events), max_size=6) if events else st.just([]))
    dice.shuffle(repeated)  # type: ignore[attr-defined]
    in_order, shuffled = told(events), told(repeated)
    assert shuffled.known() == in_order.known()
    assert shuffled.generation == in_order.generation


@given(st.lists(change(), max_size=12), st.lists(change(), max_size=4))
def test_a_late_joiner_catches_up_from_a_snapshot(before: list[Change], after: list[Change]) -> None:
    events = [DonorEvent(number + 1, *WORKER, each) for number, each in enumerate(before + after)]
    always_there = told(events)
    late = told(list(told(events[: len(before)]).snapshot()) + events[len(before) :])
    assert late.known() == always_there.known()
    assert late.generation == always_there.generation


def test_what_one_registers_the_other_finds() -> None:
    sent: list[DonorEvent] = []
    first, second = replica(sent.append), replica()
    assert first.register(TENANTS[0], "donor", PROMPTS[0], WORKER, None)
    assert not first.register(TENANTS[0], "donor", PROMPTS[0], WORKER, None)
    for event in sent * 2:
        second.apply(event)
    assert second.known() == {DonorKey(TENANTS[0].digest, "donor")}


def test_whoever_acts_after_having_heard_acts_later_whatever_its_clock() -> None:
    """The second replica's clock is far behind."""
    first_says: list[DonorEvent] = []
    second_says: list[DonorEvent] = []
    first = SharedDonors(DonorBook(Settings()), first_says.append, clock_ns=lambda: 10**18)
    second = SharedDonors(DonorBook(Settings()), second_says.append, clock_ns=lambda: 1)
    first.register(TENANTS[0], "donor", PROMPTS[0], WORKER, None)
    second.apply(first_says[0])
    second.evict(DonorKey(TENANTS[0].digest, "donor"))
    first.apply(second_says[0])
    assert first.known() == second.known() == frozenset()


def test_a_budget_is_told_to_the_others() -> None:
    sent: list[DonorEvent] = []
    small, other = replica(sent.append, max_donors=2), replica()
    for number in range(3):
        small.register(TENANTS[0], f"donor-{number}", PROMPTS[number], WORKER, None)
    for event in sent:
        other.apply(event)
    assert other.known() == small.known()
    assert len(small) == 2


def test_listeners_hear_of_donors_that_come_and_go_for_any_reason() -> None:
    heard: list[str] = []
    listeners = Listeners(
        lambda namespace, donor_id, tokens: heard.append(f"+{donor_id}"),
        lambda namespace, donor_id: heard.append(f"-{donor_id}"),
    )
    donors = SharedDonors(DonorBook(Settings(max_donors=2)), lambda event: None, listeners=listeners)
    for number in range(3):
        donors.register(TENANTS[0], f"{number}", PROMPTS[number], WORKER, None)
    assert donors.purge(TENANTS[1].salt_digest) == 0
    assert donors.purge(TENANTS[0].salt_digest) == 2
    donors.register(TENANTS[0], "3", PROMPTS[3], WORKER, None)
    assert donors.reset() == 1
    assert sorted(heard) == sorted(["+0", "+1", "-0", "+2", "-1", "-2", "+3", "-3"])
    assert len(donors) == 0
