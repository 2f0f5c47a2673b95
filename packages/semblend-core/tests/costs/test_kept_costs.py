"""What the gate learned is kept for the next process, and a file that is not right is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semblend_core.contract import DeclineReason
from semblend_core.costs import StepShape

from .engines import (
    SyntheticEngine,
    cpu,
    passages,
    serve_all,
    small_model_on_gpu,
)


def kept_in(folder: Path, model: str = "m") -> SyntheticEngine:
    return SyntheticEngine(cpu, settings={"cost_dir": str(folder)}, identity={"engine": "synthetic", "model": model})


def test_the_next_process_begins_with_what_the_last_one_learned(tmp_path: Path) -> None:
    first = kept_in(tmp_path)
    serve_all(first, 3)
    first.gate.close()
    assert kept_in(tmp_path).serve(passages(6000, 1)).claim is not None
    assert kept_in(tmp_path, "another").serve(passages(6000, 1)).reason is DeclineReason.COSTS_UNKNOWN


def test_what_was_kept_is_believed_less_than_what_is_measured(tmp_path: Path) -> None:
    first = kept_in(tmp_path)
    serve_all(first, 3)
    first.gate.close()
    second = kept_in(tmp_path)
    second.formula = small_model_on_gpu
    served = serve_all(second, 12)
    assert all(np.median([each.by_cold for each in cell[6:]]) <= 1.03 for cell in served.values())


def test_prefills_that_were_slow_in_an_earlier_process_are_soon_looked_at_again(tmp_path: Path) -> None:
    """All is reused since, which loses by now."""

    def slow_loads(step: StepShape) -> float:
        return 5000 + 8.0 * step.tokens + 30_000 * step.reuses

    first = kept_in(tmp_path)
    first.formula = lambda step: slow_loads(step) * (1 if step.reuses else 10)
    for _ in range(20):
        first.serve_cold(2400)
        first.serve(passages(2400, 1))
    first.gate.close()
    second = kept_in(tmp_path)
    second.formula = slow_loads
    served = [second.serve(passages(2400, 1)).by_cold for _ in range(100)]
    assert served[0] > 1.2, "no test of anything"
    assert np.mean(served) < 1.06


def _with_times(text: str, change: Callable[[dict[str, Any]], Any]) -> str:
    kept = json.loads(text)
    change(kept["times"])
    return json.dumps(kept)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"m"', '"other"'),
        lambda text: json.dumps({**json.loads(text), "times": {"features": []}}),
        lambda text: text.replace('"least_step": ', '"least_step": -'),
        lambda text: text.replace("semblend.costs.v2", "semblend.costs.v1"),
        lambda text: _with_times(text, lambda times: times["known"][1].__setitem__(1, -1e-3)),
        lambda text: _with_times(text, lambda times: times["known"][1].__setitem__(2, 1e9)),
        lambda text: _with_times(text, lambda times: times["seen"].__setitem__(4, 1e300)),
        lambda text: _with_times(text, lambda times: times.update(token=1e-300)),
        lambda text: _with_times(text, lambda times: times.update(prefills=-1000)),
    ],
    ids=[
        "cut off",
        "something else",
        "of another model",
        "of other features",
        "no costs",
        "of another release",
        "no squares",
        "not symmetric",
        "too much seen",
        "too fast",
        "fewer than none",
    ],
)
def test_a_file_that_is_not_right_is_left_alone_with_a_warning(
    tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first = kept_in(tmp_path)
    serve_all(first, 1)
    first.gate.close()
    (path,) = tmp_path.iterdir()
    path.write_text(damage(path.read_text()))
    second = kept_in(tmp_path)
    assert "are not used" in caplog.text
    assert second.serve(passages(6000, 1)).reason is DeclineReason.COSTS_UNKNOWN


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    engine = kept_in(tmp_path / "file" / "folder")
    serve_all(engine, 1)
    engine.gate.close()
    assert "is not kept" in caplog.text


def test_the_default_folder_is_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = SyntheticEngine(cpu, settings={"cost_dir": ""}, identity={"engine": "synthetic"})
    serve_all(engine, 1)
    engine.gate.close()
    assert len(list((tmp_path / "semblend" / "costs").iterdir())) == 1
