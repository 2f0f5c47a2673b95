"""The cost gate is fed by vLLM's own steps, and what it predicts is held against what they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semblend_core import read_audit
from semblend_core.serving import CostGate

TOWNS = ("Aldby", "Brekke", "Corvik", "Dalen", "Eidfoss", "Fagernes")


def document(town: str) -> str:
    return " ".join(
        f"In {1800 + n} the harbour of {town} counted {n * 13 % 70 + 4} ships and paid {n * 7 % 40 + 2} crowns."
        for n in range(30)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("costs")


@pytest.fixture(scope="module")
def engine(new_engine: Any, folder: Path) -> Any:
    engine = new_engine(settings={"cost_gate": 1, "cost_dir": folder / "kept", "audit_path": folder / "audit.jsonl"})
    for town in TOWNS:
        for instruction in ("Answer in a word.", "You know all about towns. Reply in one sentence, and be polite."):
            engine.ask(f"{instruction}\n\n{document(town)}\n\nQuestion: what was paid?\nAnswer:", tokens=4)
            engine.settle()
    engine.side.close()
    return engine


def compared(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_audit(folder / "audit.jsonl").records if record["event"] == "costs"]


def test_nothing_is_reused_before_costs_are_known_and_predictions_follow(engine: Any, folder: Path) -> None:
    declines = {str(reason): count for reason, count in engine.stats().declines.items()}
    assert 1 <= declines["costs_unknown"] <= 2
    assert len(compared(folder)) == len(TOWNS) - declines["costs_unknown"]


def test_every_prediction_is_compared_with_the_time_of_its_steps(engine: Any, folder: Path) -> None:
    for record in compared(folder):
        assert record["measured_us"] > 0
        assert record["steps"] == 1
        assert record["alone"]
        assert record["reused"] == (record["reason"] is None)
        # How good they are is not tested here: the machine is busy with other tests.
        assert min(record["predicted_reuse_us"], record["predicted_cold_us"], record["doubt_us"]) > 0


def test_a_long_document_is_worth_it_even_for_a_small_model(engine: Any, folder: Path) -> None:
    assert any(record["reused"] for record in compared(folder))
    assert engine.stats().confirmed_tokens > 0


def test_what_was_learned_is_kept_for_the_next_start(engine: Any, folder: Path) -> None:
    assert len(list((folder / "kept").iterdir())) == 1
    from semblend_vllm.compat.timing import cost_identity

    again = CostGate(engine.settings, 2048, cost_identity(engine.scheduler.vllm_config))
    assert again.times.is_ready
