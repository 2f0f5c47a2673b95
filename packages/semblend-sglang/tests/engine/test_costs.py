"""The cost gate is fed by SGLang's own batches, and what it predicts is held against what they take.

What is reused is compared with cold answers in idle moments, which neither the gate nor its predictions are to notice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running_engine import RunningEngine

from semblend_core.testing import records_so_far, wait_until

LEAST_TOWNS, MOST_TOWNS = 5, 40
"""However slow reuse seemed on a busy machine: before so many have come, it is tried."""


def document(town: int) -> str:
    return " ".join(
        f"In {1800 + n} harbour number {town} counted {n * 13 % 70 + 4} ships and paid {n * 7 % 40 + 2} crowns."
        for n in range(20)
    )


@pytest.fixture(scope="module")
def ran(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], int]:
    """What the audit stream holds after a few requests, from the first on; how many they were."""
    folder = tmp_path_factory.mktemp("costs")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SEMBLEND_COST_GATE", "1")
        environment.setenv("SEMBLEND_COST_DIR", str(folder / "kept"))
        environment.setenv("SEMBLEND_QUALITY_SHARE", "1")
        environment.setenv("SEMBLEND_AUDIT_PATH", str(folder / "audit.jsonl"))
        # A provider of one's own that core made: the gate and the guard write to its stream.
        environment.setenv("SEMBLEND_SGLANG_PROVIDER", "kv_on_record:provider")
        environment.setenv("KV_ON_RECORD", str(folder / "not recorded"))
        running, asked = RunningEngine(model_folder, folder / "audit.jsonl"), 0
        # Without it the gate would not know how fast a short prefill is, and wait longer before it tries one.
        running.ask("Hello.", salt="tenant", wish="off", tokens=1)
        for town in range(MOST_TOWNS):
            if town >= LEAST_TOWNS and of(records_so_far(folder / "audit.jsonl"), "materialized"):
                break
            for instruction in ("Answer in a word.", "You know all about towns. Reply in one sentence, and be polite."):
                prompt = f"{instruction}\n\n{document(town)}\n\nQuestion: what was paid?\nAnswer:"
                running.ask(prompt, salt="tenant", tokens=4)
                asked += 1
            running.confirmed()
        wait_until(lambda: _all_compared(folder / "audit.jsonl"), "the answers to be compared")
        running.close()
    wait_until(lambda: list((folder / "kept").glob("*.json")), "the costs to be kept")
    return records_so_far(folder / "audit.jsonl"), asked


@pytest.fixture
def records(ran: tuple[list[dict[str, Any]], int]) -> list[dict[str, Any]]:
    return ran[0]


def _all_compared(audit: Path) -> bool:
    records = records_so_far(audit)
    return 0 < len(of(records, "materialized")) == len(of(records, "quality"))


def of(records: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [record for record in records if record["event"] == event]


def test_nothing_is_reused_before_costs_are_known_and_predictions_follow(records: list[dict[str, Any]]) -> None:
    unknown = [record for record in of(records, "declined") if record["reason"] == "costs_unknown"]
    assert 1 <= len(unknown) <= 2
    assert of(records, "costs")
    assert not of(records[: records.index(unknown[-1])], "costs")


def test_every_prediction_is_compared_with_the_time_of_its_batches(records: list[dict[str, Any]]) -> None:
    for record in of(records, "costs"):
        assert record["measured_us"] > 0
        assert record["steps"] == 1
        assert record["alone"]
        assert record["reused"] == (record["reason"] is None)
        # How good they are is not tested here: the machine is busy with other tests.
        assert min(record["predicted_reuse_us"], record["predicted_cold_us"], record["doubt_us"]) > 0


def test_a_long_document_is_worth_it_even_for_a_small_model(records: list[dict[str, Any]]) -> None:
    assert of(records, "materialized")


def test_what_is_reused_agrees_with_what_is_computed_cold(ran: tuple[list[dict[str, Any]], int]) -> None:
    """One document behind a new instruction, in the whole model."""
    records, asked = ran
    for record in of(records, "quality"):
        assert (record["kind"], record["positions"], record["spending_now"]) == ("one_place", 4, 1.0)
        assert record["agreement"] >= 0.5
        assert 0 < record["kl"] < 0.1
    assert len(of(records, "lookup")) <= asked, "comparisons are nobody's requests"
