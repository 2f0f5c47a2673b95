"""Requests of our own ask for no adapter that was unloaded: vLLM would load it again, or end without its files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.v1.engine.core import EngineCore

Prompt = list[int]
ANSWER = 20
NUMBER = 7
"""Of the adapter."""


def some(source: random.Random, length: int) -> Prompt:
    return [source.randrange(40_000) for _ in range(length)]


@pytest.fixture
def adapter(helpers: None, tmp_path: Path) -> LoRARequest:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return LoRARequest("adapter", NUMBER, str(folder))


def unload(adapter: LoRARequest) -> None:
    """As ``LLM.llm_engine.remove_lora`` comes to the engine."""
    workers = SimpleNamespace(remove_lora=lambda number: True)
    assert EngineCore.remove_lora(SimpleNamespace(model_executor=workers), adapter.lora_int_id)


def delete(adapter: LoRARequest) -> None:
    """vLLM's server has unloaded it, told the engine nothing, and somebody cleans up."""
    shutil.rmtree(adapter.lora_path)


def replace_files(adapter: LoRARequest) -> None:
    (Path(adapter.lora_path) / "adapter_model.safetensors").write_bytes(b"others")


GONE = [unload, delete, replace_files]


def served(engine: Any, source: random.Random, adapter: LoRARequest, times: int) -> None:
    """So many who ask about a document of somebody else's prompt, while nothing is done in the background."""
    document = some(source, 480)
    engine.add(some(source, 24) + document + some(source, 20), adapter=adapter)
    engine.finish()
    opening = some(source, 40) + document
    for _ in range(times):
        request = engine.add(opening + some(source, 20), ANSWER, adapter=adapter)
        while request.request_id in engine.scheduler.requests:
            engine.step()


def asked_by_us(engine: Any) -> set[str]:
    return {name.rpartition("-")[0] for name in engine.computed if name.startswith("semblend-")}


@pytest.mark.parametrize("gone", [None, *GONE])
def test_an_opening_that_many_asked_for(
    new_overlapping: Callable[..., Any], source: random.Random, adapter: LoRARequest, gone: Any
) -> None:
    engine = new_overlapping(blocks=400)
    served(engine, source, adapter, 3)
    assert engine.side.hot.next() is not None
    if gone is not None:
        gone(adapter)
    engine.finish()
    assert asked_by_us(engine) == (set() if gone else {"semblend-exact"})
    assert engine.side.hot.next() is None
    engine.check_nothing_is_left()


@pytest.mark.parametrize("gone", [None, *GONE])
def test_an_answer_to_compare(
    new_overlapping: Callable[..., Any], source: random.Random, adapter: LoRARequest, gone: Any
) -> None:
    engine = new_overlapping(blocks=400)
    guard, heard = engine.side.guard, []
    guard._settings = replace(guard._settings, quality_share=1.0)
    guard.news.count = heard.append
    served(engine, source, adapter, 1)
    if gone is not None:
        gone(adapter)
    engine.finish()
    assert heard == (["forgotten"] if gone else ["compared"])
    assert asked_by_us(engine) == (set() if gone else {"semblend-exact", "semblend-scores"})
    engine.check_nothing_is_left()


def test_what_waits_for_its_step_is_dropped_too(
    new_overlapping: Callable[..., Any], source: random.Random, adapter: LoRARequest
) -> None:
    engine = new_overlapping(blocks=400)
    served(engine, source, adapter, 3)
    while not any(name.startswith("semblend-exact") for name in engine.scheduler.requests):
        engine.step()
    unload(adapter)
    engine.finish()
    assert asked_by_us(engine) == set()
    engine.check_nothing_is_left()


def test_an_adapter_that_is_loaded_again_is_asked_for_again(
    new_overlapping: Callable[..., Any], source: random.Random, adapter: LoRARequest
) -> None:
    engine = new_overlapping(blocks=400)
    served(engine, source, adapter, 0)
    unload(adapter)
    served(engine, source, adapter, 3)
    engine.finish()
    assert asked_by_us(engine) == {"semblend-exact"}
