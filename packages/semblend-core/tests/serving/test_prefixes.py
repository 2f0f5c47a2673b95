"""The tree of donors' beginnings says what comparing tokens would say, in whole steps."""

from __future__ import annotations

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
