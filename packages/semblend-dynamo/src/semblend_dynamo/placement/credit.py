"""How many tokens of a prompt each worker could reuse, beyond the prefix that it holds exactly."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

from semblend_dynamo.placement.findings import Finding

W = TypeVar("W", bound=Hashable)


def credits_of(finding: Finding, held: Mapping[str, Mapping[W, int]], exact_tokens: Mapping[W, int]) -> dict[W, int]:
    """Tokens by worker; workers without any are left out.

    ``held``: for each donor, how many of its leading tokens each worker has now. Partial residency counts in part:
    a piece that reaches beyond it is cut. A token that two donors hold is counted once.
    ``exact_tokens``: the prompt's own leading tokens that a worker's prefix cache covers; these are no credit.
    """
    covered: dict[W, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
    for piece in finding.pieces:
        for worker, tokens in held.get(piece.donor_id, {}).items():
            there = piece.within(tokens)
            if there is None:
                continue
            mask = covered.setdefault(worker, np.zeros(finding.prompt_tokens, dtype=np.bool_))
            mask[there.target_start : there.target_end] = True
    counted = {worker: int(mask[exact_tokens.get(worker, 0) :].sum()) for worker, mask in covered.items()}
    return {worker: tokens for worker, tokens in counted.items() if tokens}


def likeness_credits(
    similarity: Mapping[str, float], held: Mapping[str, Mapping[W, int]], prompt_tokens: int, weight: float
) -> dict[W, int]:
    """The same for donors that are only *like* the prompt: no token can be reused, so ``weight`` is small.

    ``similarity``: by donor. A worker is credited with its best one.
    """
    best: dict[W, float] = {}
    for donor_id, value in similarity.items():
        for worker, tokens in held.get(donor_id, {}).items():
            if tokens:
                best[worker] = max(best.get(worker, 0.0), value)
    return {worker: tokens for worker, value in best.items() if (tokens := round(weight * value * prompt_tokens))}
