"""The cost gate is fed by vLLM's own steps, and what it predicts is held against what they take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOWNS = ("Aldby", "Brekke", "Corvik", "Dalen", "Eidfoss", "Fagernes")


def prompt(town: str, instruction: str) -> str:
    document = " ".join(
        f"In {1800 + n} the harbour of {town} counted {n * 13 % 70 + 4} ships and paid {n * 7 % 40 + 2} crowns."
        for n in range(30)
    )
    return f"{instruction}\n\n{document}\n\nQuestion: what was paid?\nAnswer:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("costs")


@pytest.fixture(scope="module")
def served(new_server: Any, folder: Path) -> Iterator[Any]:
    """A server that has met each document twice, and was stopped."""
    with new_server({"SEMBLEND_COST_GATE": "1", "SEMBLEND_COST_DIR": str(folder)}) as server:
        for town in TOWNS:
            server.keep(prompt(town, "Answer in a word."))
            server.reused(prompt(town, "You know all about towns. Reply in one sentence, and be polite."))
        server.stop()
        yield server


def test_nothing_is_reused_before_costs_are_known_and_predictions_follow(served: Any) -> None:
    unknown = sum(record["reason"] == "costs_unknown" for record in served.records("declined"))
    assert 1 <= unknown <= 3
    # On a busy machine lookups may seem to be in vain, and the last be spared.
    assert 0 < len(served.records("costs")) <= len(TOWNS) - unknown


def test_every_prediction_is_compared_with_the_time_of_its_steps(served: Any) -> None:
    """How good they are is not tested here: the machine is busy with other tests."""
    for record in served.records("costs"):
        assert record["measured_us"] > 0
        assert record["steps"] == 1
        assert record["alone"]
        assert record["reused"] == (record["reason"] is None)
        assert min(record["predicted_reuse_us"], record["predicted_cold_us"], record["doubt_us"]) > 0


def test_what_was_learned_is_kept_for_the_next_start(served: Any, folder: Path) -> None:
    (kept,) = folder.iterdir()
    assert json.loads(kept.read_text())
