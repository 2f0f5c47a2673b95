"""How far two scorings of one text lie apart, by the few likeliest tokens that an engine tells."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend_core.quality import Scored, divergence


def top(logits: npt.NDArray[np.float64], count: int) -> Scored:
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.argsort(-logprobs, axis=-1, kind="stable")[:, :count]
    return Scored(ids, np.take_along_axis(logprobs, ids, -1))


def random_logits(seed: int, positions: int = 8, vocabulary: int = 50) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0, 3, (positions, vocabulary))


def true_kl(cold: npt.NDArray[np.float64], reused: npt.NDArray[np.float64]) -> float:
    p, q = (each - np.log(np.exp(each).sum(-1, keepdims=True)) for each in (cold, reused))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def test_equal_scorings_do_not_diverge() -> None:
    found = divergence(top(random_logits(0), 16), top(random_logits(0), 16))
    assert (found.agreement, found.positions) == (1.0, 8)
    assert found.kl == pytest.approx(0, abs=1e-12)


def test_agreement_counts_the_positions_with_the_same_likeliest_token() -> None:
    cold, other = random_logits(0), random_logits(0)
    other[:2] = -other[:2]
    assert divergence(top(cold, 16), top(other, 16)).agreement == 0.75


@given(seed=st.integers(0, 10_000), noise=st.floats(0.01, 3), count=st.integers(1, 50))
def test_kl_is_never_overstated_and_exact_where_all_tokens_are_told(seed: int, noise: float, count: int) -> None:
    cold = random_logits(seed)
    reused = cold + noise * random_logits(seed + 1)
    told = divergence(top(cold, count), top(reused, count)).kl
    assert told is not None
    assert 0 <= told <= true_kl(cold, reused) + 1e-6
    if count == 50:
        assert told == pytest.approx(true_kl(cold, reused), rel=1e-3, abs=1e-6)


def test_the_few_likeliest_tell_most_of_it() -> None:
    cold = random_logits(3, 64, 5000)
    reused = cold + 0.2 * random_logits(4, 64, 5000)
    told = divergence(top(cold, 64), top(reused, 64)).kl
    assert told is not None
    assert told > 0.4 * true_kl(cold, reused), "of a flat distribution; where few tokens are likely it is nearly all"


def test_tokens_that_are_equally_likely_are_no_disagreement() -> None:
    cold = Scored(np.array([[1, 2, 3]]), np.log(np.array([[0.4, 0.4, 0.1]])))
    assert divergence(cold, Scored(np.array([[2, 1, 3]]), np.log(np.array([[0.5, 0.3, 0.1]])))).agreement == 1
    assert divergence(cold, Scored(np.array([[3, 1, 2]]), np.log(np.array([[0.5, 0.3, 0.1]])))).agreement == 0


def test_it_does_not_matter_on_which_side_they_are_equally_likely() -> None:
    cold = Scored(np.array([[1, 2, 3]]), np.log(np.array([[0.5, 0.3, 0.1]])))
    assert divergence(cold, Scored(np.array([[2, 1, 3]]), np.log(np.array([[0.4, 0.4, 0.1]])))).agreement == 1
    assert divergence(cold, Scored(np.array([[2, 3, 1]]), np.log(np.array([[0.4, 0.4, 0.1]])))).agreement == 0


def test_without_probabilities_there_is_agreement_and_no_kl() -> None:
    logits = Scored(np.array([[1, 2]]), np.array([[12.0, 7.0]]))
    found = divergence(logits, logits)
    assert (found.agreement, found.kl) == (1.0, None)


def test_texts_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="as many positions"):
        divergence(top(random_logits(0, 3), 4), top(random_logits(0, 4), 4))
