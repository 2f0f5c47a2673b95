"""A model of Gemma 3's shape: its windows turn keys faster than its other layers do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semblend_core.testing import write_two_rotations_model

DOCUMENTS = ("one document", "four documents")


@pytest.fixture(scope="module")
def two_rotations(
    run_program: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    model: Path = write_two_rotations_model(tmp_path_factory.mktemp("two_rotations") / "model")
    return run_program("two_rotations", str(model))


def test_both_kinds_of_layers_are_proved(two_rotations: dict[str, Any]) -> None:
    assert two_rotations["window"] == 128
    assert "K of layer 0 agrees" in two_rotations["proved"]
    assert "in layer 2" in two_rotations["proved"]


def test_what_was_moved_is_what_would_have_been_computed(two_rotations: dict[str, Any]) -> None:
    """Behind layer 0, what stands before a token counts a little."""
    moved = two_rotations["moved"]
    assert moved["confirmed"] > 0.5 * moved["tokens"]
    assert moved["keys"][0] < 1e-4
    assert moved["values"][0] == 0.0
    assert len(moved["keys"]) == 6
    assert max(moved["keys"] + moved["values"]) < 0.15, "turned wrongly, keys differ by more than their size"


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_prompts_are_reused(two_rotations: dict[str, Any], documents: str, divergence: Any, answer: Any) -> None:
    found = two_rotations["answers"][documents]
    assert found["reused"]["cached_tokens"] == found["confirmed"] > 0.5 * found["cold"]["prompt_tokens"]
    assert found["reused"]["tokens"] == found["cold"]["tokens"]
    assert divergence(answer(found["cold"]), answer(found["reused"])) < 0.01


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_without_reuse_nothing_approximate_is_found(two_rotations: dict[str, Any], documents: str) -> None:
    found = two_rotations["answers"][documents]
    assert found["off"]["cached_tokens"] == 0
    assert found["off"]["tokens"] == found["cold"]["tokens"]
    assert found["off"]["logprobs"] == found["cold"]["logprobs"]


def test_another_tenant_finds_nothing(two_rotations: dict[str, Any]) -> None:
    assert two_rotations["other"]["cached_tokens"] == 0
    assert two_rotations["other"]["logprobs"] == two_rotations["answers"]["one document"]["cold"]["logprobs"]


def test_a_load_that_fails_is_computed(two_rotations: dict[str, Any]) -> None:
    fault, cold = two_rotations["load"], two_rotations["answers"]["four documents"]["cold"]
    assert fault["broken"]["tokens"] == cold["tokens"]
    assert fault["between"]["declines"]["load_failed"] == 1
    assert fault["after"]["confirmed"] > fault["between"]["confirmed"]


def test_several_are_served_at_once(two_rotations: dict[str, Any], divergence: Any, answer: Any) -> None:
    found = two_rotations["batch"]
    assert found["confirmed"] > 0.5 * sum(each["prompt_tokens"] for each in found["alone"])
    for alone, together in zip(found["alone"], found["together"], strict=True):
        assert divergence(answer(alone), answer(together)) < 0.02


def test_no_block_is_lost(two_rotations: dict[str, Any]) -> None:
    assert two_rotations["churn"]["confirmed"] > 0
    before, after = two_rotations["churn"]["free"]
    assert before == after


def test_what_would_need_a_correction_is_left_to_the_fast_tier(two_rotations: dict[str, Any]) -> None:
    before, one, four = two_rotations["balanced"]["counted"]
    assert one["confirmed"] > before["confirmed"]
    assert four["confirmed"] == one["confirmed"]
    assert four["declines"]["quality_tier"] == one["declines"].get("quality_tier", 0) + 1


@pytest.mark.parametrize(("kind", "layer"), [("sliding_attention", "layer 0"), ("full_attention", "layer 2")])
def test_a_wrong_frequency_in_one_kind_of_layers_is_found_out(
    two_rotations: dict[str, Any], kind: str, layer: str
) -> None:
    found = two_rotations["wrong"][kind]
    assert found["failed"]
    assert layer in found["says"]
