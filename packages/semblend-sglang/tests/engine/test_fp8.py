"""KV that SGLang keeps as fp8: it is found, turned and reused, and answers stay close to those of the same engine.

SGLang stores fp8_e4m3 on CPUs for AMX alone, by a method of its own. What it does with fp8_e5m2 is what GPUs do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from archive import CASES, QUESTIONS, recipient
from running_engine import RunningEngine, cached, divergence

BOUNDS = {"new instruction": 0.1, "passages in another order": 0.35, "passages of four requests": 0.45}
"""Mean KL in nats. Moved keys are rounded once more, by up to an eighth."""


@pytest.fixture(scope="module")
def running(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    folder = tmp_path_factory.mktemp("fp8")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SEMBLEND_AUDIT_PATH", str(folder / "audit.jsonl"))
        engine = RunningEngine(model_folder, folder / "audit.jsonl", kv_cache_dtype="fp8_e5m2")
        yield engine
        engine.close()


@pytest.mark.parametrize("name", CASES)
def test_what_was_computed_before_is_reused_and_answers_stay_close(running: RunningEngine, name: str) -> None:
    donors, _, _ = CASES[name]
    for donor in donors:
        running.ask(donor, salt=name, tokens=1)
    far = []
    for question in QUESTIONS:
        prompt, before = recipient(name, question), running.confirmed()
        reused = running.ask(prompt, salt=name)
        confirmed = running.confirmed() - before
        cold = running.ask(prompt, salt=f"{name}, {question}, another tenant")
        assert confirmed > 0.6 * cold["meta_info"]["prompt_tokens"]
        assert cached(cold) == 0, "another tenant was served from this one's KV"
        far.append(divergence(cold, reused))
    assert sum(far) / len(far) < BOUNDS[name], far
