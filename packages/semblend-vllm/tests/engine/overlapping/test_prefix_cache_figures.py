"""What vLLM shows of its prefix cache is of clients' requests alone, whatever is computed in the background."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest


def some(source: random.Random, length: int) -> list[int]:
    return [source.randrange(40_000) for _ in range(length)]


@pytest.mark.parametrize("share", [0.0, 1.0], ids=["hot openings", "comparisons too"])
def test_background_requests_are_in_no_figure_of_vllms(
    share: float, new_overlapping: Callable[..., Any], source: random.Random
) -> None:
    engine = new_overlapping(blocks=400)
    engine.side.guard._settings = replace(engine.side.guard._settings, quality_share=share)
    document = some(source, 480)
    asked = [engine.add(some(source, 24) + document + some(source, 20))]
    engine.finish()
    opening = some(source, 40) + document
    for _ in range(4):
        asked.append(engine.add(opening + some(source, 20)))
        engine.finish()
    assert engine.side.provider.stats().background_tokens > 0
    own = {name: engine.in_metrics[f"own {name}"] for name in ("requests", "queries", "hits")}
    prompts = sum(request.num_prompt_tokens for request in asked)
    assert (own["requests"], own["queries"]) == (len(asked), prompts)
    assert engine.in_metrics["connector requests"] == len(asked)
    assert engine.in_metrics["connector queries"] == prompts - own["hits"]
    engine.check_nothing_is_left()
