"""A model that takes images too (Qwen2-VL's shape): text is reused, and prompts with images are declined one by one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semblend_core.testing import write_vision_model

DOCUMENTS = ("one document", "four documents")
STAND_INS = Path(__file__).with_name("stand_ins")


@pytest.fixture(scope="module")
def vision(run_program: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model = write_vision_model(tmp_path_factory.mktemp("vision") / "model")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(STAND_INS), prepend=os.pathsep)
        return run_program("vision", str(model))


def test_positions_have_three_parts_and_keys_turn_by_one(vision: dict[str, Any]) -> None:
    assert vision["positions"]
    assert vision["proved"]


@pytest.mark.parametrize(("documents", "most"), [("one document", 0.05), ("four documents", 0.2)])
def test_text_is_reused(vision: dict[str, Any], documents: str, most: float, divergence: Any, answer: Any) -> None:
    found = vision["answers"][documents]
    assert found["reused"]["cached_tokens"] == found["confirmed"] > 0.5 * found["cold"]["prompt_tokens"]
    assert divergence(answer(found["cold"]), answer(found["reused"])) < most


def test_one_document_is_answered_as_cold(vision: dict[str, Any]) -> None:
    found = vision["answers"]["one document"]
    assert found["reused"]["tokens"] == found["cold"]["tokens"]


def test_what_was_moved_is_what_would_have_been_computed(vision: dict[str, Any]) -> None:
    """Layer 0 has seen nothing but tokens and positions. Behind it, what stands before a token counts a little."""
    moved = vision["moved"]
    assert moved["confirmed"] > 0.5 * moved["tokens"]
    assert moved["keys"][0] < 1e-4
    assert max(moved["keys"]) < 0.15, "turned wrongly, keys differ by more than their size"


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_without_reuse_nothing_approximate_is_found(vision: dict[str, Any], documents: str) -> None:
    found = vision["answers"][documents]
    assert found["off"]["cached_tokens"] == 0
    assert found["off"]["tokens"] == found["cold"]["tokens"]
    assert found["off"]["logprobs"] == found["cold"]["logprobs"]


def test_another_tenant_finds_nothing(vision: dict[str, Any]) -> None:
    assert vision["other"]["cached_tokens"] == 0
    assert vision["other"]["logprobs"] == vision["answers"]["one document"]["cold"]["logprobs"]


def test_a_prompt_with_an_image_is_served_cold_and_counted(vision: dict[str, Any]) -> None:
    shown = vision["images"]
    assert shown["asked"]["tokens"] == shown["cold"]["tokens"]
    assert shown["asked"]["cached_tokens"] == 0
    assert shown["between"]["confirmed"] == shown["before"]["confirmed"]
    assert shown["between"]["declines"]["unsupported_request"] > shown["before"]["declines"].get(
        "unsupported_request", 0
    )


def test_a_prompt_with_an_image_is_no_donor(vision: dict[str, Any]) -> None:
    shown = vision["images"]
    assert shown["donor"]["prompt_tokens"] > 400
    assert shown["after"]["cached_tokens"] == 0
    assert shown["at_the_end"]["confirmed"] == shown["before"]["confirmed"]


def test_a_load_that_fails_is_computed(vision: dict[str, Any]) -> None:
    fault, cold = vision["load"], vision["answers"]["four documents"]["cold"]
    assert fault["broken"]["tokens"] == cold["tokens"]
    assert fault["broken"]["cached_tokens"] == 0
    assert fault["between"]["declines"]["load_failed"] == fault["before"]["declines"].get("load_failed", 0) + 1
    assert fault["after"]["confirmed"] > fault["between"]["confirmed"]


def test_several_are_served_at_once(vision: dict[str, Any], divergence: Any, answer: Any) -> None:
    found = vision["batch"]
    assert found["confirmed"] > 0.5 * sum(each["prompt_tokens"] for each in found["alone"])
    for alone, together in zip(found["alone"], found["together"], strict=True):
        assert divergence(answer(alone), answer(together)) < 0.05


def test_no_block_is_lost(vision: dict[str, Any]) -> None:
    assert vision["churn"]["confirmed"] > 0
    before, after = vision["churn"]["free"]
    assert before == after
