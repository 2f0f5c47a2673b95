"""Prompts whose plans do not pay are looked up rarely: those of a length, and those of a kind among them."""

from __future__ import annotations

import pytest

from semblend_core.contract import Glimpse
from semblend_core.costs import Lookup, Lookups
from semblend_core.costs.lookups import FEWEST_AGAIN, FEWEST_IN_VAIN, KIND_FOR_LENGTH, LOOK_ONE_IN

SHORT = Lookup(2048)
GLIMPSE_US = 300
ONE_DOCUMENT, TEN_PASSAGES = Glimpse(1, 0.95), Glimpse(10, 0.9)


def every_eighth() -> float:
    """So that tests can count."""
    return 0.5


class Glimpsing(Lookups):
    """Each takes some time, by a clock of its own."""

    def __init__(self) -> None:
        super().__init__(lambda: self.clock, every_eighth)
        self.clock = 0.0

    def at(self, seen: Glimpse, took: float = GLIMPSE_US) -> Lookup | None:
        def glimpse() -> Glimpse:
            self.clock += took / 1e6
            return seen

        return self.ask(2048, glimpse)


def in_vain(lookups: Lookups, glimpse: Glimpse | None = None) -> None:
    for _ in range(FEWEST_IN_VAIN):
        lookup = lookups.ask(2048, lambda: glimpse)
        assert lookup is not None
        assert lookup.stands_for == 1
        lookups.note(lookup, -3_000)


def asked(lookups: Lookups, times: int, glimpse: Glimpse | None = None) -> list[Lookup]:
    made = (lookups.ask(2048, lambda: glimpse) for _ in range(times))
    return [lookup for lookup in made if lookup is not None and lookup.stands_for]


def test_lengths_whose_plans_do_not_pay_are_looked_up_rarely() -> None:
    lookups = Lookups(draw=every_eighth)
    in_vain(lookups)
    made = asked(lookups, 10 * LOOK_ONE_IN)
    assert [lookup.stands_for for lookup in made] == [LOOK_ONE_IN] * 10
    assert lookups.ask(6144) is not None, "another length is another matter"


@pytest.mark.parametrize("period", [2, 4, 8])
@pytest.mark.parametrize("phase", [0, 1])
@pytest.mark.parametrize("burst", range(16, 24))
def test_of_prompts_in_a_fixed_order_no_kind_is_left_out_for_ever(period: int, phase: int, burst: int) -> None:
    lookups, looked_up = Lookups(), 0
    for number in range(-burst, 1000):
        gains = number >= 0 and number % period == phase
        lookup = lookups.ask(6000, (lambda: ONE_DOCUMENT) if gains else (lambda: Glimpse(0, 0.0)))
        if lookup is None:
            continue
        if gains and lookup.stands_for:
            looked_up += 1
            lookups.note(lookup, 60_000)
        else:
            lookups.found_nothing(lookup, 2_000)
    assert looked_up > 0.7 * 1000 / period


def test_a_prompt_that_gains_is_not_in_vain_whatever_others_have_lost() -> None:
    lookups = Glimpsing()
    lookups.note(Lookup(2048, ONE_DOCUMENT.kind), -1_000_000)  # As if the process had stood still in the first one.
    for _ in range(100):
        lookup = lookups.at(ONE_DOCUMENT)
        assert lookup is not None
        assert lookup.stands_for == 1
        lookups.note(lookup, 1_000)


def test_one_that_pays_ends_that() -> None:
    lookups = Lookups(draw=every_eighth)
    in_vain(lookups)
    lookups.note(Lookup(2100), 8_000)
    assert len(asked(lookups, 5)) == 5


@pytest.mark.parametrize(("gained", "are_worth_it"), [(100_000, True), (8_000, False)])
def test_where_much_was_gained_lately_they_go_on_for_longer(gained: float, are_worth_it: bool) -> None:
    lookups = Lookups(draw=every_eighth)
    for _ in range(20):
        lookups.note(SHORT, gained)
    in_vain(lookups)
    assert bool(asked(lookups, LOOK_ONE_IN - 1)) is are_worth_it


@pytest.mark.parametrize(("cold", "outdated"), [(17_000.0, True), (60_000.0, False)])
@pytest.mark.parametrize("glimpse", [None, TEN_PASSAGES])
def test_what_compilations_seemed_to_spare_is_forgotten_with_them(
    cold: float, outdated: bool, glimpse: Glimpse | None
) -> None:
    """A prompt was believed to take 100 ms, so much was gained; then it turns out to take less."""
    lookups = Lookups(draw=every_eighth)
    kind = None if glimpse is None else glimpse.kind
    for _ in range(8):
        lookups.note(Lookup(2048, kind), 80_000, 100_000)
    for lookup in asked(lookups, FEWEST_IN_VAIN, glimpse):
        lookups.declined(lookup, 2_000, cold)
    assert bool(asked(lookups, LOOK_ONE_IN - 1, glimpse)) is not outdated


def test_where_some_of_a_kind_pay_the_others_do_not_end_their_lookups() -> None:
    lookups, looked_up = Lookups(draw=every_eighth), 0
    for number in range(400):
        lookup = lookups.ask(2048)
        if lookup is not None:
            looked_up += 1
            if number % 5:
                lookups.declined(lookup, 1000)
            else:
                lookups.note(lookup, 20_000)
    assert looked_up > 350


@pytest.mark.parametrize(("gained", "skipped"), [(0.0, True), (100_000.0, False)])
def test_lookups_that_find_nothing_are_worth_what_the_rare_finding_spares(gained: float, skipped: bool) -> None:
    lookups, looked_up = Lookups(draw=every_eighth), 0
    for number in range(400):
        lookup = lookups.ask(2048)
        if lookup is None:
            continue
        looked_up += 1
        if gained and number % 10 == 0:
            lookups.note(lookup, gained)
        else:
            lookups.found_nothing(lookup, 1_000.0)
    assert (looked_up < 400 / LOOK_ONE_IN + 2 * FEWEST_IN_VAIN) if skipped else looked_up == 400


# --- Kinds of prompts ------------------------------------------------------------------------------------------------


def test_a_kind_that_does_not_pay_leaves_others_of_its_length_alone() -> None:
    lookups = Lookups(draw=every_eighth)
    in_vain(lookups, TEN_PASSAGES)
    assert [lookup.stands_for for lookup in asked(lookups, 2 * LOOK_ONE_IN, TEN_PASSAGES)] == [LOOK_ONE_IN] * 2
    assert len(asked(lookups, 20, ONE_DOCUMENT)) == 20


@pytest.mark.parametrize("alike", [Glimpse(11, 0.8), Glimpse(8, 0.99)])
def test_about_as_many_places_and_as_much_of_a_prompt_are_one_kind(alike: Glimpse) -> None:
    lookups = Lookups(draw=every_eighth)
    in_vain(lookups, TEN_PASSAGES)
    assert not asked(lookups, LOOK_ONE_IN - 1, alike)


@pytest.mark.parametrize("other", [Glimpse(10, 0.3), Glimpse(4, 0.9), Glimpse(40, 0.9)])
def test_more_places_or_less_of_a_prompt_are_another(other: Glimpse) -> None:
    lookups = Lookups(draw=every_eighth)
    in_vain(lookups, TEN_PASSAGES)
    assert len(asked(lookups, LOOK_ONE_IN, other)) == LOOK_ONE_IN


def test_a_kind_that_did_not_pay_before_is_given_up_sooner() -> None:
    lookups = Lookups(draw=every_eighth)
    in_vain(lookups, TEN_PASSAGES)
    lookups.note(Lookup(2048, TEN_PASSAGES.kind), 2_000)
    for _ in range(FEWEST_AGAIN):
        (lookup,) = asked(lookups, 1, TEN_PASSAGES)
        lookups.note(lookup, -3_000)
    assert not asked(lookups, LOOK_ONE_IN - 1, TEN_PASSAGES)


def test_glimpses_that_lead_to_nothing_become_rare_too() -> None:
    lookups = Glimpsing()
    for _ in range(20):
        lookups.note(Lookup(2048, ONE_DOCUMENT.kind), 4_000)
    in_vain(lookups, TEN_PASSAGES)
    glimpsed = 0
    for _ in range(400):
        lookup = lookups.at(TEN_PASSAGES)
        if lookup is None:
            continue
        glimpsed += 1
        if lookup.stands_for:
            lookups.note(lookup, -3_000)
        else:
            lookups.found_nothing(lookup, GLIMPSE_US + 100)
    assert 400 / LOOK_ONE_IN <= glimpsed < 100
    lookups.note(Lookup(2048, ONE_DOCUMENT.kind), 100_000)
    assert len(asked(lookups, 10, ONE_DOCUMENT)) == 10, "one that pays for all of them ends it"


def one_in_five_gains(
    lookups: Glimpsing, gained: float, prompts: int, disturbed: float = 0.0, cold: float = 0.0
) -> int:
    """The others' kind was given up, but for that a glimpse is needed. ``disturbed``: the first one. Glimpses made."""
    made = 0
    for number in range(prompts):
        seen = TEN_PASSAGES if number % 5 else ONE_DOCUMENT
        took = disturbed if number == 1 and disturbed else GLIMPSE_US
        lookup = lookups.at(seen, took)
        if lookup is None:
            continue
        made += 1
        if seen is ONE_DOCUMENT:
            lookups.note(lookup, gained, cold)
        elif lookup.stands_for:
            lookups.declined(lookup, 2_000 + took, cold)
        else:
            lookups.found_nothing(lookup, took + 100, cold)
    return made


@pytest.mark.parametrize(("gained", "are_worth_it"), [(600, False), (4_000, True)])
def test_prompts_that_gain_pay_for_the_glimpses_at_the_others(gained: float, are_worth_it: bool) -> None:
    lookups = Glimpsing()
    in_vain(lookups, TEN_PASSAGES)
    one_in_five_gains(lookups, gained, 1000)
    made = one_in_five_gains(lookups, gained, 1000)
    assert (made > 900) if are_worth_it else (made < 400), made


@pytest.mark.parametrize(("cold", "are_worth_it"), [(20_000, False), (60_000, True)])
def test_where_glimpses_are_dear_most_prompts_must_gain(cold: float, are_worth_it: bool) -> None:
    """The others wait for them: 1.5% of their time is felt, 0.5% is not."""
    lookups = Glimpsing()
    in_vain(lookups, TEN_PASSAGES)
    one_in_five_gains(lookups, 3_500, 1000, cold=cold)
    made = one_in_five_gains(lookups, 3_500, 1000, cold=cold)
    assert (made > 900) if are_worth_it else (made < 400), made


def test_where_all_prompts_gain_a_little_nobody_pays_for_dear_glimpses() -> None:
    """They were given up, and are taken up again when nobody is left who gains nothing."""
    lookups = Glimpsing()
    for _ in range(60):
        lookup = lookups.at(TEN_PASSAGES, 400)
        if lookup is not None and lookup.stands_for:
            lookups.declined(lookup, 2_000, 20_000)
        elif lookup is not None:
            lookups.found_nothing(lookup, 500, 20_000)
    made = 0
    for number in range(6_000):
        lookup = lookups.at(ONE_DOCUMENT, 400)
        if lookup is not None and lookup.stands_for:
            made += number >= 5_000
            lookups.note(lookup, 550, 20_000)
    assert made == 1000


def test_where_all_prompts_gain_dear_glimpses_are_made() -> None:
    lookups = Glimpsing()
    made = 0
    for _ in range(1000):
        lookup = lookups.at(ONE_DOCUMENT)
        if lookup is not None and lookup.stands_for:
            made += 1
            lookups.note(lookup, 1_500, 20_000)
    assert made == 1000


def test_one_slow_glimpse_was_an_accident() -> None:
    lookups = Glimpsing()
    in_vain(lookups, TEN_PASSAGES)
    one_in_five_gains(lookups, 20_000, 500)
    assert one_in_five_gains(lookups, 20_000, 1000, disturbed=1e6) > 950


def test_where_all_begin_to_gain_that_is_noticed_soon() -> None:
    lookups = Glimpsing()
    in_vain(lookups, TEN_PASSAGES)
    one_in_five_gains(lookups, -2_000, 400)
    looked_up = 0
    for _ in range(100):
        lookup = lookups.at(ONE_DOCUMENT)
        if lookup is not None and lookup.stands_for:
            looked_up += 1
            lookups.note(lookup, 8_000)
    assert looked_up > 80


def test_where_no_kind_pays_nobody_looks_any_more_what_kind_it_is() -> None:
    lookups, count = Lookups(draw=every_eighth), round(1 / KIND_FOR_LENGTH)
    kinds = [Glimpse(1 << n, 0.9) for n in range(count)]
    for glimpse in kinds:
        in_vain(lookups, glimpse)
    looked: list[Glimpse] = []

    def glimpse() -> Glimpse:
        looked.append(kinds[0])
        return kinds[0]

    made = [lookup for lookup in (lookups.ask(2048, glimpse) for _ in range(10 * LOOK_ONE_IN)) if lookup is not None]
    assert len(looked) == len(made) == 10, "and such a lookup is made, whatever is known of its kind"
