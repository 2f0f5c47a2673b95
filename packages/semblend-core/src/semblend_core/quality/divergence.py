"""How far two scorings of the same text lie apart: most likely tokens in common, and KL as far as it can be told."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Scored:
    """The likeliest next tokens at each position of a forced text, the likeliest first."""

    token_ids: npt.NDArray[np.int64]
    """[positions, tokens]"""
    logprobs: npt.NDArray[np.float64]
    """[positions, tokens], natural logarithms."""

    def __post_init__(self) -> None:
        if self.token_ids.shape != self.logprobs.shape or self.token_ids.ndim != 2 or not self.token_ids.size:
            raise ValueError(f"one logprob for each token, got {self.token_ids.shape} and {self.logprobs.shape}")


@dataclass(frozen=True, slots=True)
class Divergence:
    agreement: float
    """Share of positions whose likeliest token is the same. Tokens that are equally likely are the same."""
    kl: float | None
    """Mean over positions, of reuse from cold, in nats; None where the engine gave no probabilities.

    Of the tokens that both list, and of all others as if they were one: never more than the true KL.
    """
    positions: int


def divergence(cold: Scored, reused: Scored) -> Divergence:
    if len(cold.token_ids) != len(reused.token_ids):
        raise ValueError(f"the same text has as many positions, got {len(cold.token_ids)} and {len(reused.token_ids)}")
    rows = range(len(cold.token_ids))
    agreeing = [_agree(cold, reused, row) for row in rows]
    terms = [_kl(cold, reused, row) for row in rows]
    known = [term for term in terms if term is not None]
    kl = sum(known) / len(known) if len(known) == len(terms) else None
    return Divergence(sum(agreeing) / len(agreeing), kl, len(agreeing))


def _agree(cold: Scored, reused: Scored, row: int) -> bool:
    return not _likeliest(cold, row).isdisjoint(_likeliest(reused, row))


def _likeliest(scored: Scored, row: int) -> set[int]:
    logprobs = scored.logprobs[row]
    return set(scored.token_ids[row][logprobs == logprobs[0]].tolist())


def _kl(cold: Scored, reused: Scored, row: int) -> float | None:
    p, q = np.exp(cold.logprobs[row]), np.exp(reused.logprobs[row])
    if not (_is_probability(p) and _is_probability(q)):
        return None  # Some engines can be set to give logits.
    same = cold.token_ids[row][:, None] == reused.token_ids[row][None, :]
    ours, theirs = np.nonzero(same)
    p, q = p[ours], q[theirs]
    total = float(np.sum(p * np.log(p / q))) if p.size else 0.0
    others_p, others_q = max(0.0, 1 - float(p.sum())), max(1e-9, 1 - float(q.sum()))
    if others_p > 0:
        total += others_p * math.log(others_p / others_q)
    return max(0.0, total)


def _is_probability(values: npt.NDArray[np.float64]) -> bool:
    return bool(np.all(values > 0)) and float(values.sum()) < 1.01
