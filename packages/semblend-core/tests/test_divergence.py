"""How far two answers are apart, by their most likely tokens."""

from __future__ import annotations

import math

import pytest

from semblend_core.testing import divergence


def likely(**chances: float) -> dict[str, float]:
    return {token: math.log(chance) for token, chance in chances.items()}


def test_an_answer_is_not_apart_from_itself() -> None:
    steps = [likely(a=0.7, b=0.3), likely(c=0.9, d=0.1)]
    assert divergence(steps, steps) == 0


def test_it_counts_up_to_the_first_other_token_and_that_one() -> None:
    cold = [likely(a=0.7, b=0.3), likely(c=0.9, d=0.1)]
    other = [likely(a=0.4, b=0.6), likely(c=0.1, d=0.9)]
    first = 0.7 * math.log(0.7 / 0.4) + 0.3 * math.log(0.3 / 0.6)
    assert divergence(cold, other) == pytest.approx(first)


def test_what_is_not_named_is_as_likely_as_the_last_that_is() -> None:
    assert divergence([likely(a=0.8, b=0.2)], [likely(a=0.8, c=0.1)]) == pytest.approx(0.2 * math.log(0.2 / 0.1))
