"""The tree of donors' beginnings says what comparing tokens would say, in whole steps."""

from __future__ import annotations

import gc
import weakref

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core import TokenIds
from semblend_core.serving.prefixes import STEP, DonorPrefixes

CHOICES = st.lists(st.integers(0, 1), max_size=4)
"""Which of two texts follows, piece by piece: prompts share beginnings of every length."""
PIECES = [[np.arange(first, first + size, dtype=np.int32) for first in (0, 1000)] for size in (40, 16, 7, 70)]


def prompt(choices: list[int]) -> TokenIds:
    parts = [PIECES[place][choice] for place, choice in enumerate(choices)]
    return np.concatenate([np.full(3, 9, np.int32), *parts])


def shared(ours: TokenIds, theirs: TokenIds) -> int:
    size = min(ours.size, theirs.size)
    return int(np.cumprod(ours[:size] == theirs[:size]).sum())


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(CHOICES, st.booleans()), max_size=12), CHOICES, st.sampled_from(["a", "b"]))
def test_it_knows_what_donors_hold_and_which_ones_a_prompt_replaces(
    steps: list[tuple[list[int], bool]], asked: list[int], namespace: str
) -> None:
    prefixes, there = DonorPrefixes(), dict[str, TokenIds]()
    for choices, stays in steps:
        donor_id = str(choices)
        if stays:
            there[donor_id] = prompt(choices)
            prefixes.add(("a", donor_id), there[donor_id])
        else:
            there.pop(donor_id, None)
            prefixes.discard(("a", donor_id))
        prefixes.check_integrity()
    tokens = prompt(asked)
    visible = there if namespace == "a" else {}
    held = max((shared(tokens, donor) // STEP for donor in visible.values()), default=0)
    assert prefixes.held(namespace, tokens) == held * STEP
    shorter = {
        donor_id
        for donor_id, donor in visible.items()
        if donor.size < tokens.size and shared(tokens, donor) == donor.size
    }
    assert {donor_id for _, donor_id in prefixes.replaced_by((namespace, "new"), tokens)} == shorter


@settings(deadline=None, max_examples=200)
@given(st.lists(CHOICES, max_size=12, unique_by=str), st.lists(CHOICES, max_size=3), CHOICES)
def test_it_knows_who_holds_a_beginning_and_how_much_of_it(
    donors: list[list[int]], gone: list[list[int]], asked: list[int]
) -> None:
    prefixes, there = DonorPrefixes(), dict[str, TokenIds]()
    for choices in donors:
        there[str(choices)] = prompt(choices)
        prefixes.add(("a", str(choices)), there[str(choices)])
    for choices in gone:
        there.pop(str(choices), None)
        prefixes.discard(("a", str(choices)))
    tokens = prompt(asked)
    expected = {donor_id: shared(tokens, donor) // STEP * STEP for donor_id, donor in there.items()}
    found = list(prefixes.holders("a", tokens))
    assert {name[1]: held for name, held in found} == {each: held for each, held in expected.items() if held}
    assert [held for _, held in found] == sorted((held for _, held in found), reverse=True)
    assert list(prefixes.holders("b", tokens)) == []


def test_prompts_that_branch_off_one_after_the_other_are_no_burden() -> None:
    """As those of a client that cuts the same text a little later each time."""
    random = np.random.default_rng(1)
    text = random.integers(0, 50_000, 3000 * STEP).astype(np.int32)
    prefixes = DonorPrefixes()
    for cut in range(1, 3000):
        prefixes.add(("a", str(cut)), np.concatenate([text[: cut * STEP], np.full(STEP, 60_000 + cut, np.int32)]))
    found = list(prefixes.holders("a", text[: 2 * STEP]))
    assert len(found) == 2999
    assert [held for _, held in found] == [2 * STEP] * 2998 + [STEP]
    prefixes.check_integrity()


def test_nothing_of_a_prompt_is_held_when_it_is_gone() -> None:
    prefixes = DonorPrefixes()
    tokens = prompt([0, 1, 0])
    prefixes.add(("a", "d"), tokens)
    gone = weakref.ref(tokens)
    del tokens
    gc.collect()
    assert gone() is None
    assert prefixes.held("a", prompt([0, 1, 1])) == shared(prompt([0, 1, 0]), prompt([0, 1, 1])) // STEP * STEP
