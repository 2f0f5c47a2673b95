"""The page of metrics names every figure that a result publishes and every gate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sembench.cli.results import assert_result_gates
from sembench.engine_events import ENGINES
from sembench.schema import Aggregate, Paired

PAGE = Path(__file__).parents[4] / "docs" / "METRICS.md"
NO_FIGURES = {"items", "arm", "block_size", "judge"}


@pytest.fixture(scope="module")
def words() -> set[str]:
    if not PAGE.exists():
        pytest.skip("the pages are not part of the package")
    return set(re.findall(r"[A-Za-z0-9_-]+", PAGE.read_text(encoding="utf-8")))


def test_every_figure_is_explained(words: set[str]) -> None:
    figures = {*Aggregate.model_fields, *Paired.model_fields} - NO_FIGURES
    assert figures - words == set()


def test_every_gate_is_explained(words: set[str]) -> None:
    options = {option for parameter in assert_result_gates.params for option in parameter.opts}
    gates = {option for option in options if option.startswith(("--min-", "--max-", "--require-", "--allow-"))}
    assert len(gates) == 13
    assert gates - words == set()


def test_every_engine_is_explained(words: set[str]) -> None:
    assert set(ENGINES) - words == set()
