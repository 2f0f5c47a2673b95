"""vLLM guesses next tokens by n-grams: reuse stays what it is, and as many guesses are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.exhaustive  # vLLM compiles its search for n-grams at every start.

DOCUMENTS = ("one document", "four documents")


@pytest.fixture(scope="module")
def speculation(run_program: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return run_program("speculation")


def accepted(answer: dict[str, Any]) -> float:
    return float(answer["right"]) / max(1.0, float(answer["guessed"]))


@pytest.mark.parametrize(("documents", "most"), [("one document", 0.03), ("four documents", 0.15)])
def test_prompts_are_reused_while_tokens_are_guessed(
    speculation: dict[str, Any], documents: str, most: float, divergence: Any, answer: Any
) -> None:
    found = speculation["answers"][documents]
    assert found["confirmed"] > 0.4 * found["cold"]["prompt_tokens"]
    assert found["reused"]["cached_tokens"] == found["confirmed"]
    assert divergence(answer(found["cold"]), answer(found["reused"])) < most
    assert found["cold"]["guessed"] > 0
    assert found["reused"]["guessed"] > 0


def test_probes_show_where_questions_look(speculation: dict[str, Any]) -> None:
    """vLLM asks for news of a step before it lets connectors finish it."""
    assert speculation["probes"] == {"chose": 1}


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_without_reuse_nothing_approximate_is_found(speculation: dict[str, Any], documents: str) -> None:
    found = speculation["answers"][documents]
    assert found["off"]["cached_tokens"] == 0
    for name in ("tokens", "logprobs", "guessed", "right"):
        assert found["off"][name] == found["cold"][name]


def test_the_same_prompt_goes_on_from_what_was_reused(speculation: dict[str, Any]) -> None:
    for found in speculation["answers"].values():
        assert found["again"]["cached_tokens"] >= found["reused"]["cached_tokens"]
        assert found["again"]["tokens"] == found["reused"]["tokens"]


def test_as_many_guesses_are_right_as_without_reuse(speculation: dict[str, Any]) -> None:
    cold, reused = (
        sum(accepted(found[how]) for found in speculation["answers"].values()) for how in ("cold", "reused")
    )
    assert cold > 0.2, "where nothing is guessed right nothing is shown"
    assert reused > 0.8 * cold


def test_some_are_admitted_with_rows_while_others_guess(
    speculation: dict[str, Any], divergence: Any, answer: Any
) -> None:
    found = speculation["batch"]
    assert found["confirmed"] > 0.5 * sum(each["prompt_tokens"] for each in found["alone"])
    for alone, together in zip(found["alone"], found["together"], strict=True):
        assert len(together["tokens"]) == len(alone["tokens"]) == 32
        assert divergence(answer(alone), answer(together)) < 0.05


def test_a_load_that_fails_is_computed(speculation: dict[str, Any]) -> None:
    fault, cold = speculation["load"], speculation["answers"]["four documents"]["cold"]
    assert fault["broken"]["tokens"] == cold["tokens"]
    assert fault["broken"]["cached_tokens"] == 0
    assert fault["between"]["declines"]["load_failed"] == 1
    assert fault["after"]["confirmed"] > fault["between"]["confirmed"]


def test_answers_are_compared_with_cold_ones(speculation: dict[str, Any]) -> None:
    assert speculation["compared"] == {"compared": 1}
