"""The rank of what a donor told: 0 where everything leaks, half of the others where nothing does."""

from __future__ import annotations

import numpy as np
import pytest

from sembench.privacy.arms import EMBEDDED_ARMS
from sembench.privacy.figures import PrivacyFigures, Readings, rank_told, summarize
from sembench.privacy.trials import Question, Reading, Trial
from sembench.report.page import render_report
from sembench.report.privacy import describe_leak
from sembench.schema import Aggregate, Result, RunIdentity
from sembench.statistics import bootstrap_mean

CANDIDATES = tuple(f" word{number}" for number in range(12))
DOCUMENTS = 9


def question(number: int) -> Question:
    trials = tuple(Trial(f"{number}-{told}", told, "donor", "document") for told in range(12))
    return Question("private_preamble", f"d/{number}", "prompt", CANDIDATES, trials)


def figures(gain: float, noise: float = 0.0, answer: str | None = None) -> PrivacyFigures:
    """Nine documents with twelve donors each; what was told becomes more likely by ``gain`` nats."""
    source = np.random.default_rng(5)
    readings = []
    for number in range(DOCUMENTS):
        cold = source.normal(-5, 2, 12)
        behind = [cold + gain * (np.arange(12) == told) + noise * source.normal(size=12) for told in range(12)]
        readings.append(
            Readings(
                question(number),
                Reading(tuple(cold), answer),
                tuple(Reading(tuple(row), answer, 100, "materialized") for row in behind),
            )
        )
    return summarize(EMBEDDED_ARMS["one_salt"], readings)


def test_ties_count_as_half() -> None:
    scores = np.array([[0.0, 0.0, 0.0, 0.0], [3.0, 2.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    assert rank_told(scores, [2, 1, 3]) == [1.5, 1.5, 0.0]


def test_where_all_answers_are_the_same_the_rank_is_chance() -> None:
    found = figures(gain=0.0)
    assert (found.trials, found.chance_rank) == (108, 5.5)
    assert (found.mean_rank.value, found.mean_rank.low, found.mean_rank.high) == (5.5, 5.5, 5.5)
    assert (found.ranked_first.numerator, found.shift_nats.value) == (0, 0.0)


def test_noise_alone_is_chance_within_its_interval() -> None:
    found = figures(gain=0.0, noise=1.0)
    assert found.mean_rank.low is not None
    assert found.mean_rank.high is not None
    assert found.mean_rank.low < 5.5 < found.mean_rank.high


def test_a_leak_is_rank_nought_also_under_noise() -> None:
    assert figures(gain=0.5).mean_rank.value == 0.0
    assert figures(gain=0.5).gain_nats.value == pytest.approx(0.5 * 11 / 12)
    noisy = figures(gain=3.0, noise=0.5)
    assert noisy.mean_rank.high is not None
    assert noisy.mean_rank.high < 0.5
    assert noisy.ranked_first.denominator == 108


def test_what_every_donor_does_alike_is_no_leak_but_shows_against_cold() -> None:
    readings = []
    for number in range(2):
        cold = np.zeros(12)
        moved = tuple(np.arange(12.0))
        readings.append(Readings(question(number), Reading(tuple(cold)), tuple(Reading(moved) for _ in range(12))))
    found = summarize(EMBEDDED_ARMS["one_salt"], readings)
    assert found.mean_rank.value == 5.5
    assert found.cold_rank.value == 5.5
    assert found.cold_ranked_first.numerator == 2


def test_answers_that_name_the_claim_are_counted_beside_cold_ones() -> None:
    found = figures(gain=1.0, answer="it is word3, surely")
    assert found.named is not None
    assert found.named_cold is not None
    assert (found.named.numerator, found.named.denominator) == (DOCUMENTS, 108)
    assert found.named_cold == found.named
    assert figures(gain=1.0).named is None


def test_an_interval_of_a_mean_draws_whole_documents() -> None:
    assert bootstrap_mean([[1.0, 3.0]]).low is None
    assert bootstrap_mean([]).value is None
    apart = bootstrap_mean([[0.0] * 50, [10.0] * 50])
    assert (apart.low, apart.value, apart.high, apart.n) == (0.0, 5.0, 10.0, 100)


def result_of(entries: list[PrivacyFigures]) -> Result:
    run = RunIdentity(
        kind="privacy",
        started_at="2026-11-16T05:00:00+00:00",
        finished_at=None,
        manifest=None,
        manifest_sha256=None,
        manifest_items=None,
        command=[],
        versions={},
        host={},
    )
    return Result(
        run=run,
        config={},
        aggregate=Aggregate(items=108, requests_ok=108, requests_failed=0),
        privacy=[entry.model_dump(mode="json") for entry in entries],
    )


def test_the_report_has_a_section_with_rank_interval_count_and_chance() -> None:
    leaking = figures(gain=3.0, noise=0.5)
    closed = figures(gain=0.0).model_copy(update={"arm": "separate_salts"})
    page = render_report([result_of([leaking, closed])])
    for words in ("Privacy", "A secret in front of a document", "5.50", "n=108", "separate_salts", "108 of 108"):
        assert words in page
    assert describe_leak([leaking, closed]).startswith(
        "Away from chance (chance is 5.5 of 12 candidates, 0 is all): one"
    )
    assert "holds chance" in describe_leak([closed])


@pytest.mark.parametrize("entries", [[], [{"arm": "of another version"}]])
def test_the_report_says_where_nothing_was_measured_or_can_be_read(entries: list[dict[str, str]]) -> None:
    page = render_report([result_of([]).model_copy(update={"privacy": entries})])
    assert "Not measured" in page or "cannot be read" in page
