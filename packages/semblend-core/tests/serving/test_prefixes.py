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
