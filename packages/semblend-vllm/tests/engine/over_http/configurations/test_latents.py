"""A model with latent attention (MLA): the rotated part of a token's latent is turned, the rest is moved as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semblend_core.testing import write_latent_model

DOCUMENTS = ("one document", "four documents")


@pytest.fixture(scope="module")
def latents(run_program: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model: Path = write_latent_model(tmp_path_factory.mktemp("latents") / "model")
    return run_program("latents", str(model))


def test_vllm_keeps_latents(latents: dict[str, Any]) -> None:
    assert latents["kind"] == "MLAAttentionSpec"
    assert latents["proved"]


@pytest.mark.parametrize(("documents", "most"), [("one document", 0.01), ("four documents", 0.02)])
def test_prompts_are_reused(latents: dict[str, Any], documents: str, most: float, divergence: Any, answer: Any) -> None:
    found = latents["answers"][documents]
    assert found["reused"]["cached_tokens"] == found["confirmed"] > 0.5 * found["cold"]["prompt_tokens"]
    assert divergence(answer(found["cold"]), answer(found["reused"])) < most


def test_one_document_is_answered_as_cold(latents: dict[str, Any]) -> None:
    found = latents["answers"]["one document"]
    assert found["reused"]["tokens"] == found["cold"]["tokens"]


def test_what_was_moved_is_what_would_have_been_computed(latents: dict[str, Any]) -> None:
    """Layer 0 has seen nothing but tokens and positions. Behind it, what stands before a token counts a little."""
    moved = latents["moved"]
    assert moved["confirmed"] > 0.5 * moved["tokens"]
    assert moved["latent"][0] == 0.0
    assert moved["rotated"][0] < 1e-4
    assert max(moved["latent"] + moved["rotated"]) < 0.15, "turned wrongly, keys differ by more than their size"


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_without_reuse_nothing_approximate_is_found(latents: dict[str, Any], documents: str) -> None:
    found = latents["answers"][documents]
    assert found["off"]["cached_tokens"] == 0
    assert found["off"]["tokens"] == found["cold"]["tokens"]
    assert found["off"]["logprobs"] == found["cold"]["logprobs"]


def test_another_tenant_finds_nothing(latents: dict[str, Any]) -> None:
    assert latents["other"]["cached_tokens"] == 0
    assert latents["other"]["logprobs"] == latents["answers"]["one document"]["cold"]["logprobs"]


@pytest.mark.parametrize("what", ["load", "correction"])
def test_what_fails_is_computed(latents: dict[str, Any], what: str) -> None:
    fault, cold = latents[what], latents["answers"]["four documents"]["cold"]
    assert fault["broken"]["tokens"] == cold["tokens"]
    assert fault["broken"]["cached_tokens"] == 0
    assert fault["between"]["declines"]["load_failed"] == fault["before"]["declines"].get("load_failed", 0) + 1
    assert fault["after"]["confirmed"] > fault["between"]["confirmed"]


def test_several_are_served_at_once(latents: dict[str, Any], divergence: Any, answer: Any) -> None:
    found = latents["batch"]
    assert found["confirmed"] > 0.5 * sum(each["prompt_tokens"] for each in found["alone"])
    for alone, together in zip(found["alone"], found["together"], strict=True):
        assert divergence(answer(alone), answer(together)) < 0.02


def test_no_block_is_lost(latents: dict[str, Any]) -> None:
    assert latents["churn"]["confirmed"] > 0
    before, after = latents["churn"]["free"]
    assert before == after


def test_nothing_is_probed(latents: dict[str, Any]) -> None:
    """Queries meet what attention makes of latents."""
    assert latents["counted"]["probes"] == {}
