"""FlashInfer attends before it stores, unless it is asked: rows would see KV that is not there yet.

SGLang's own attention backend runs here, in a real engine on a CPU. Its kernels are stand-ins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from programs import run_program
from running_engine import cached, divergence
from scenes import FOUR, ONE


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> dict[str, Any]:
    return run_program("store_order", model_folder, tmp_path_factory.mktemp("store_order"))


@pytest.mark.parametrize("case", [ONE, FOUR])
def test_rows_run_with_flashinfer_and_answers_stay_near_cold_ones(found: dict[str, Any], case: str) -> None:
    answers = found["asked"][case]
    assert answers["confirmed"] == cached(answers["reused"]) > 0.5 * answers["cold"]["meta_info"]["prompt_tokens"]
    assert divergence(answers["cold"], answers["reused"]) < 0.05
    assert divergence(answers["cold"], answers["off"]) < 1e-4, "without reuse it is as cold"


@pytest.mark.parametrize("case", [ONE, FOUR])
def test_without_being_asked_flashinfer_would_be_further_away(found: dict[str, Any], case: str) -> None:
    """So the test above can fail."""
    cold, right, wrong = found["asked"][case]["cold"], found["asked"][case]["reused"], found["unasked"][case]
    assert cached(wrong) == cached(right)
    assert divergence(cold, wrong) > divergence(cold, right) + 0.03
