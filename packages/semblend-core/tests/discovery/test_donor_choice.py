"""Of donors that hold the same passage, the one that read most alike before it gives it; nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.contract import DonorOffer, LookupRequest, Namespace, Plan, TokenIds
from semblend_core.discovery import donor_choice
from semblend_core.discovery.runs import DonorColumns
from semblend_core.provider import create_provider
from semblend_core.provider.semblend import SemBlend
from semblend_core.settings import Settings

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="d", kv_layout="l", block_size=16, adapter=None, salt="tenant"
)


def text(seed: int, size: int = 300) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 50_000, size).astype(np.int32)


def reworded(tokens: TokenIds) -> TokenIds:
    """The same words, each two in another order: nothing of it can be reused, and all of it is alike."""
    return tokens.reshape(-1, 2)[:, ::-1].ravel()


def joined(*parts: TokenIds) -> TokenIds:
    return np.concatenate(parts).astype(np.int32)


def provider_with(*donors: TokenIds, **changed: Any) -> SemBlend:
    provider = create_provider(Settings(lookup_budget_ms=60_000.0, min_reuse_ratio=0.0, **changed), engine="test")
    for number, tokens in enumerate(donors):
        assert provider.offer_donor(DonorOffer(f"donor-{number}", NAMESPACE, tokens)).reason is None
    return provider


def plan_of(provider: SemBlend, prompt: TokenIds, exact: int = 0, alignment: int = 1) -> Plan:
    found = provider.lookup(LookupRequest("r", NAMESPACE, prompt, exact, alignment))
    assert found.plan is not None, found.reason
    return found.plan


PASSAGE, FRIEND, STRANGER, TOLD = text(1), text(2), text(3), text(4)


@pytest.mark.parametrize("newest", ["friend", "stranger"])
def test_the_donor_that_read_alike_before_the_passage_gives_it_whoever_is_newer(newest: str) -> None:
    friend, stranger = joined(reworded(FRIEND), PASSAGE), joined(STRANGER, PASSAGE)
    donors = (stranger, friend) if newest == "friend" else (friend, stranger)
    plan = plan_of(provider_with(*donors), joined(FRIEND, PASSAGE))
    assert plan.donor_ids == (f"donor-{1 if newest == 'friend' else 0}",)
    assert plan.reused_tokens == PASSAGE.size - 1, "the last token of a prompt is always computed"


def test_text_of_the_exact_prefix_counts_as_what_stands_before() -> None:
    provider = provider_with(joined(reworded(FRIEND), PASSAGE), joined(STRANGER, PASSAGE))
    plan = plan_of(provider, joined(FRIEND, PASSAGE), exact=FRIEND.size)
    assert plan.donor_ids == ("donor-0",)
    assert plan.spans[0].target_start == FRIEND.size


def test_a_piece_that_goes_on_in_the_text_before_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = provider_with(joined(reworded(FRIEND), PASSAGE), joined(FRIEND, PASSAGE))
    monkeypatch.setattr(donor_choice, "context_likeness", lambda *args: pytest.fail("nothing is to be compared"))
    assert plan_of(provider, joined(FRIEND, PASSAGE), exact=FRIEND.size).donor_ids == ("donor-1",)


def test_a_separator_before_both_does_not_hide_that_the_text_before_is_another() -> None:
    """The piece before takes the separator, so that the passage's own run is cut there."""
    separator, first = text(10, 4), text(6)
    provider = provider_with(
        joined(reworded(FRIEND), reworded(first), separator, PASSAGE),
        joined(text(11), first, separator),
        joined(STRANGER, separator, PASSAGE),
    )
    plan = plan_of(provider, joined(FRIEND, first, separator, PASSAGE, text(5)))
    assert plan.donor_ids == ("donor-1", "donor-0")


def test_at_the_front_of_a_prompt_a_donor_that_began_with_the_passage_is_most_alike() -> None:
    provider = provider_with(joined(PASSAGE, TOLD), joined(STRANGER, PASSAGE))
    assert plan_of(provider, joined(PASSAGE, text(5))).donor_ids == ("donor-0",)


def test_a_longer_piece_is_worth_more_than_a_donor_that_read_alike() -> None:
    provider = provider_with(joined(reworded(FRIEND), PASSAGE[:-40]), joined(STRANGER, PASSAGE))
    plan = plan_of(provider, joined(FRIEND, PASSAGE, text(5)))
    assert plan.donor_ids == ("donor-1",)
    assert plan.reused_tokens == PASSAGE.size


def test_a_little_more_alike_is_not_worth_another_donor() -> None:
    stranger = STRANGER.copy()
    stranger[::16] = FRIEND[::16]
    stranger[-1] += 1  # Else the passage would be longer in this one.
    provider = provider_with(joined(stranger, PASSAGE), joined(STRANGER, PASSAGE))
    assert plan_of(provider, joined(FRIEND, PASSAGE)).donor_ids == ("donor-1",)


def test_a_near_copy_is_never_taken_for_the_passage() -> None:
    near = PASSAGE.copy()
    near[40] += 1
    provider = provider_with(joined(reworded(FRIEND), near), joined(STRANGER, PASSAGE))
    plan = plan_of(provider, joined(FRIEND, PASSAGE, text(5)))
    assert plan.donor_ids == ("donor-1",)
    assert plan.reused_tokens == PASSAGE.size


def test_among_near_copies_the_passage_itself_is_found_where_it_read_alike() -> None:
    """Each copy has one word changed, at another place; all of them stand in newer donors."""
    copies = []
    for number in range(4):
        copy = PASSAGE.copy()
        copy[30 + 70 * number] += 1
        copies.append(joined(text(20 + number), copy))
    provider = provider_with(joined(reworded(FRIEND), PASSAGE), joined(STRANGER, PASSAGE), *copies)
    plan = plan_of(provider, joined(FRIEND, PASSAGE, text(5)))
    assert plan.donor_ids == ("donor-0",)


@pytest.mark.parametrize("edited", [True, False])
def test_one_document_with_edits_stays_with_one_donor(edited: bool) -> None:
    """An older donor read alike before the second part and lacks the first. Apart, the parts may go apart."""
    first, second = text(6, 100), text(7)
    older = joined(reworded(FRIEND), reworded(first), second)
    provider = provider_with(older, joined(STRANGER, first, second))
    between = text(8, 5) if edited else text(8, 80)
    plan = plan_of(provider, joined(FRIEND, first, between, second, text(5)))
    assert plan.donor_ids == (("donor-1",) if edited else ("donor-1", "donor-0"))


def test_both_parts_of_an_edited_document_move_to_the_donor_that_read_alike() -> None:
    document = text(6, 600)
    provider = provider_with(joined(reworded(FRIEND), document), joined(STRANGER, document), quality_tier="strict")
    edited = document.copy()
    edited[300] += 1
    plan = plan_of(provider, joined(FRIEND, edited, text(5)))
    assert plan.donor_ids == ("donor-0",)
    assert len(plan.spans) == 2


def test_a_donor_that_is_being_forgotten_is_not_chosen() -> None:
    provider = provider_with(joined(reworded(FRIEND), PASSAGE), joined(STRANGER, PASSAGE))
    record = provider.registry.record_of(NAMESPACE.digest, "donor-0")
    assert record is not None
    with provider.registry._lock:  # As a purge leaves it until it has swept the index.
        provider.registry._unswept.append(provider.registry._unlist(record).serial)
    assert plan_of(provider, joined(FRIEND, PASSAGE)).donor_ids == ("donor-1",)
    provider.check_integrity()


def test_the_same_donors_and_the_same_prompt_give_the_same_plan() -> None:
    donors = [joined(text(30 + number), PASSAGE, text(50 + number % 2)) for number in range(12)]
    prompt = joined(text(33), text(5), PASSAGE, text(51))
    plans = {plan_of(provider_with(*donors), prompt).spans for _ in range(3)}
    assert len(plans) == 1


passages = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(passages, min_size=1, max_size=8), passages, st.integers(0, 200), st.sampled_from([1, 16]), st.booleans()
)
def test_the_cover_is_as_long_as_without_the_choice_and_every_piece_is_what_its_donor_holds(
    donors: list[list[int]], asked: list[int], exact: int, alignment: int, fuzzy: bool
) -> None:
    texts = [joined(*(text(100 + part, 90) for part in parts)) for parts in donors]
    prompt = joined(*(text(100 + part, 90) for part in asked), text(9, 70))
    provider = provider_with(*texts, fuzzy_chunks=fuzzy, min_saved_tokens=16)
    found = provider.lookup(LookupRequest("r", NAMESPACE, prompt, min(exact, prompt.size), alignment)).plan
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(provider.registry, "most_alike", lambda namespace, prompt, cover, found, deadline: cover)
        longest = provider.lookup(LookupRequest("r", NAMESPACE, prompt, min(exact, prompt.size), alignment)).plan
    assert _places(found) == _places(longest)
    for span in found.spans if found else ():
        held = texts[int(span.donor_id.split("-")[1])][span.donor_start : span.donor_end]
        assert np.array_equal(held, prompt[span.target_start : span.target_end])


def _places(plan: Plan | None) -> list[tuple[int, int]]:
    return [(span.target_start, span.length) for span in plan.spans] if plan else []


def test_however_many_donors_hold_a_passage_few_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, ...]] = []
    likeness = donor_choice.context_likeness

    def counted(*args: Any) -> Any:
        compared.append(args[3].shape)
        return likeness(*args)

    monkeypatch.setattr(donor_choice, "context_likeness", counted)
    parts = [text(200 + number) for number in range(40)]
    provider = provider_with(*(joined(text(500 + number), *parts) for number in range(40)))
    order = np.random.default_rng(1).permutation(40).tolist()
    plan_of(provider, joined(*(parts[number] for number in order), text(5)))
    assert compared == [(donor_choice.MOST_PIECES, 2 + donor_choice.MOST_OTHERS)]


def test_likeness_is_1_for_the_same_words_and_for_two_fronts_and_low_for_others() -> None:
    arena = joined(reworded(FRIEND), PASSAGE, STRANGER, PASSAGE)
    donors = DonorColumns(arena, np.array([0, 600]), np.array([600, 600]), np.array([1, 2]))
    prompt = joined(FRIEND, PASSAGE)
    starts = np.array([300, 0])
    likeness = donor_choice.context_likeness(
        prompt, starts, donors, np.array([[0, 1, -1], [0, 1, 1]]), np.array([[300, 300, 0], [0, 0, 300]])
    )
    assert likeness[0, 0] == 1
    assert likeness[0, 1] < 0.2
    assert likeness[0, 2] == -1
    assert likeness[1].tolist()[:2] == [1, 1]
    assert likeness[1, 2] < 0.1
