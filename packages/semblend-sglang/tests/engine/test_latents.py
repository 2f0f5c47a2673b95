"""A model with latent attention (MLA): the rotated part of a token's latent is turned, the rest is moved as it is."""

from __future__ import annotations

from typing import Any

import pytest
from programs import run_program
from running_engine import cached, divergence

from semblend_core.testing import write_latent_model

CASES = ("new instruction", "passages of four requests")


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("latents")
    return run_program("latents", write_latent_model(folder / "model", yarn=True), folder)


@pytest.mark.parametrize("case", CASES)
def test_prompts_are_reused_and_answered_as_cold(latents: dict[str, Any], case: str) -> None:
    found = latents["answers"][case]
    assert latents["proved"]
    assert found["confirmed"] == cached(found["reused"]) > 0.6 * found["cold"]["meta_info"]["prompt_tokens"]
    assert found["reused"]["output_ids"] == found["cold"]["output_ids"]
    assert divergence(found["cold"], found["reused"]) < 0.01


def test_what_was_moved_is_what_would_have_been_computed(latents: dict[str, Any]) -> None:
    """Layer 0 has seen nothing but tokens and positions. Behind it, what stands before a token counts a little."""
    moved = latents["moved"]
    assert moved["confirmed"] > 0.5 * moved["tokens"]
    assert moved["latent"][0] < 1e-5
    assert moved["rotated"][0] < 1e-4
    assert max(moved["latent"] + moved["rotated"]) < 0.15, "turned wrongly, keys differ by more than their size"


@pytest.mark.parametrize("case", CASES)
def test_nothing_approximate_is_found_as_exact(latents: dict[str, Any], case: str) -> None:
    found = latents["answers"][case]
    assert cached(found["off"]) < 0.1 * found["cold"]["meta_info"]["prompt_tokens"]
    assert found["off"]["output_ids"] == found["cold"]["output_ids"]
    assert divergence(found["cold"], found["off"]) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_another_tenant_finds_nothing(latents: dict[str, Any], case: str) -> None:
    found = latents["answers"][case]
    assert cached(found["other"]) == 0
    assert divergence(found["cold"], found["other"]) < 1e-5


@pytest.mark.parametrize(
    ("what", "reason"), [("lookup", "internal_error"), ("sources", "internal_error"), ("move", "load_failed")]
)
def test_what_fails_is_computed(latents: dict[str, Any], what: str, reason: str) -> None:
    fault, cold = latents["faults"][what], latents["answers"]["passages of four requests"]["cold"]
    before, between = fault["before"], fault["between"]
    assert fault["broken"]["output_ids"] == cold["output_ids"]
    assert divergence(cold, fault["broken"]) < 1e-5
    assert cached(fault["broken"]) == 0
    assert between["declines"][reason] == before["declines"].get(reason, 0) + 1
    assert fault["after"]["confirmed"] > between["confirmed"] == before["confirmed"]


def test_several_are_served_at_once(latents: dict[str, Any]) -> None:
    found = latents["batch"]
    assert found["confirmed"] > 0.5 * sum(each["meta_info"]["prompt_tokens"] for each in found["alone"])
    for alone, together in zip(found["alone"], found["together"], strict=True):
        assert together["output_ids"] == alone["output_ids"]
        assert divergence(alone, together) < 0.01


def test_a_conversation_goes_on_from_what_was_served(latents: dict[str, Any]) -> None:
    for turn in latents["conversation"]:
        assert turn["prompt_tokens"] - turn["cached_tokens"] < 40, "the history is computed again"


def test_no_slot_is_lost(latents: dict[str, Any]) -> None:
    """After more at once than the pool can hold, and after every fault."""
    assert latents["crowd"]["answers"] == 10
    for state in (*latents["crowd"]["ranks"], latents["at_the_end"], latents["emptied"]):
        assert (state["requests"], state["loads"]) == (0, 0)
        assert state["free"] + sum(state["evictable"]) == latents["emptied"]["free"]
    assert latents["emptied"]["evictable"] == [0, 0]
