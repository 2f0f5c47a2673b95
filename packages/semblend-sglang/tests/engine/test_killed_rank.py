"""A rank that is killed ends SGLang, as without SemBlend; what both ranks had kept on disk is found by the next."""

from __future__ import annotations

from typing import Any

import pytest
from programs import SEVERAL_RANKS, run_program
from running_engine import divergence

from semblend_core.testing import write_split_model


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("killed")
    return run_program("killed_rank", write_split_model(folder / "model"), folder, **SEVERAL_RANKS)


def test_the_engine_ends_and_nobody_waits_for_an_answer(found: dict[str, Any]) -> None:
    assert found["exit"] is not None, "it hangs"
    assert not found["answered"]


def test_the_next_one_reuses_what_was_kept(found: dict[str, Any]) -> None:
    assert found["confirmed"] > 0.6 * found["cold"]["meta_info"]["prompt_tokens"]
    assert found["asked"]["output_ids"] == found["cold"]["output_ids"]
    assert divergence(found["cold"], found["asked"]) < 0.05
    assert all((rank["requests"], rank["loads"]) == (0, 0) for rank in found["ranks"])
