"""A model of which some layers attend to a window, all of whose KV vLLM was told to keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOCUMENTS = ("one document", "four documents")


@pytest.fixture(scope="module")
def windows(
    run_program: Callable[..., dict[str, Any]], helpers: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    from window_model import write_window_model

    model: Path = write_window_model(tmp_path_factory.mktemp("windows") / "model")
    return run_program("windows", str(model))


def test_vllm_knows_of_the_window(windows: dict[str, Any]) -> None:
    assert windows["window"] == 128


@pytest.mark.parametrize(("documents", "most"), [("one document", 0.03), ("four documents", 0.15)])
def test_prompts_are_reused(windows: dict[str, Any], documents: str, most: float, divergence: Any, answer: Any) -> None:
    found = windows["answers"][documents]
    assert found["confirmed"] > 0.5 * found["cold"]["prompt_tokens"]
    assert found["reused"]["tokens"][0] == found["cold"]["tokens"][0]
    assert divergence(answer(found["cold"]), answer(found["reused"])) < most


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_without_reuse_nothing_approximate_is_found(windows: dict[str, Any], documents: str) -> None:
    found = windows["answers"][documents]
    assert found["off"]["cached_tokens"] == 0
    assert found["off"]["tokens"] == found["cold"]["tokens"]
    assert found["off"]["logprobs"] == found["cold"]["logprobs"]


def test_a_load_that_fails_is_computed(windows: dict[str, Any]) -> None:
    fault, cold = windows["load"], windows["answers"]["four documents"]["cold"]
    assert fault["broken"]["tokens"] == cold["tokens"]
    assert fault["between"]["declines"]["load_failed"] == 1
    assert fault["after"]["confirmed"] > fault["between"]["confirmed"]
