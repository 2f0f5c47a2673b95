"""Among donors that hold the same passage, the one in which it stood behind the most similar text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from semblend_core.contract import Span, TokenIds

REACH_TOKENS = 512
"""How far back text still colours a passage enough to matter."""


def context_likeness(prompt: TokenIds, target_start: int, donor: TokenIds, donor_start: int) -> float:
    """How much of the text before a passage is the same here and in the donor, in any order: 0 to 1.

    Twice the shared tokens by all of both (Dice). Two empty contexts are alike; an empty and another are not.
    """
    here = prompt[max(0, target_start - REACH_TOKENS) : target_start]
    there = donor[max(0, donor_start - REACH_TOKENS) : donor_start]
    if not here.size or not there.size:
        return float(here.size == there.size)
    ids, counts = np.unique(here, return_counts=True)
    others, other_counts = np.unique(there, return_counts=True)
    _, at, other_at = np.intersect1d(ids, others, assume_unique=True, return_indices=True)
    shared = np.minimum(counts[at], other_counts[other_at]).sum()
    return float(2 * shared / (here.size + there.size))


def most_alike(prompt: TokenIds, alternatives: Sequence[Span], donors: Mapping[str, TokenIds]) -> Span:
    """Of spans over the same recipient tokens, the one whose donor read most alike before them. Ties: the first."""
    if not alternatives:
        raise ValueError("there is no span to choose from")
    return max(
        alternatives,
        key=lambda span: context_likeness(prompt, span.target_start, donors[span.donor_id], span.donor_start),
    )
