"""Evidence that a mean lies below a bound: none where it does not, soon where it does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend_core.quality import Evidence

shares = st.floats(0, 1)


@given(bound=shares, values=st.lists(shares, max_size=50))
def test_observations_at_or_above_the_bound_are_never_evidence(bound: float, values: list[float]) -> None:
    evidence = Evidence(bound)
    for value in values:
        evidence.add(max(bound, value))
        assert evidence.strength <= 1


@given(bound=shares, values=st.lists(shares, max_size=200))
def test_no_observation_ruins_a_bettor(bound: float, values: list[float]) -> None:
    evidence = Evidence(bound)
    for value in values:
        evidence.add(value)
        assert 0 < evidence.strength < float("inf")


@pytest.mark.parametrize(("mean", "at_most"), [(0.5, 8), (0.7, 20), (0.85, 90)])
def test_a_lack_is_noticed_the_sooner_the_larger_it_is(mean: float, at_most: int) -> None:
    values = np.random.default_rng(0).binomial(64, mean, 500) / 64
    assert observations_until(Evidence(0.9), values, 300) <= at_most


def test_a_long_good_time_hides_nothing() -> None:
    evidence = Evidence(0.9)
    for _ in range(10_000):
        evidence.add(1.0)
    assert observations_until(evidence, np.full(50, 0.6), 300) <= 10


def test_at_the_bound_chance_alone_needs_longer_than_its_strength() -> None:
    """The mean over many runs, as theory promises."""
    rng = np.random.default_rng(1)
    runs = [observations_until(Evidence(0.9), rng.binomial(1, 0.9, 3000).astype(float), 30) for _ in range(60)]
    assert np.mean(runs) > 30


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_what_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Evidence(0.9).add(value)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Evidence(value)


def observations_until(evidence: Evidence, values: np.ndarray, strength: float) -> int:
    for number, value in enumerate(values, start=1):
        evidence.add(float(value))
        if evidence.strength >= strength:
            return number
    return len(values)
