"""vLLM's scheduler with two steps in flight, over a worker on paper."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def helpers(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("helpers")))


@pytest.fixture
def answer(helpers: None) -> Any:
    """What a request must be answered: by its prompt, and how many tokens."""
    from paper_worker import right_answer

    return right_answer


@pytest.fixture
def new_overlapping(helpers: None) -> Iterator[Callable[..., Any]]:
    from overlapping_engine import Overlapping

    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(Overlapping(**options))
        return made[-1]

    yield make
    for engine in made:
        engine.scheduler.shutdown()


@pytest.fixture
def source(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.node.name)
