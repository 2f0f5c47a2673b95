"""vLLM holds, after a prefill with reuse, the KV that the reference engine holds for the same plan.

So what is measured with the reference engine holds for vLLM: the same tokens relocated, computed and corrected.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semblend_core import Plan, ProbeEnd, Row, RowKind, as_token_ids, donor_id_of
from semblend_core.recompute import RecomputePolicy, Selection
from semblend_core.serving import Claim, ProbeTrust
from semblend_vllm.scheduler.rows import RowRoom

MOST_ERROR = 1e-3
SIDES = ("north", "east")
PARTS = [
    " ".join(f"Room {n} on floor {floor} has {n * floor % 9 + 1} windows to the {SIDES[n % 2]}." for n in range(12))
    for floor in (3, 5, 7)
]
QUESTION = "\n\nQuestion: which floor is brightest?\nAnswer:"
HOUSE = "A plan of the house.\n\n" + "\n\n".join(PARTS) + QUESTION
ONE_EACH = [f"Sheet {number}.\n\n{part}\n\nTitle:" for number, part in enumerate(PARTS)]
NEW_FRONT = "You are an architect, and brief.\n\n" + "\n\n".join(PARTS) + QUESTION
OTHER_ORDER = "You are an architect.\n\n" + "\n\nNext floor. ".join(PARTS[i] for i in (2, 0, 1)) + QUESTION


@pytest.fixture(scope="module")
def reference(engine: Any) -> Any:
    from semblend_core.reference import ReferenceEngine

    return ReferenceEngine.load(engine.llm.model_config.model)


@dataclass(frozen=True)
class Prefilled:
    """A request of vLLM's whose prompt is computed."""

    tokens: np.ndarray
    claim: Claim
    keys: Any
    """[layers, tokens, heads, components]"""
    values: Any
    logits: Mapping[int, float]


def prefill(engine: Any, prompt: str, salt: str) -> Prefilled:
    from vllm import SamplingParams

    llm = engine.llm.llm_engine
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=20)
    llm.add_request("held", {"prompt": prompt, "cache_salt": salt}, sampling)
    outputs: list[Any] = []
    while not outputs:
        outputs = llm.step()
    (request,) = engine.scheduler.running
    claim = engine.side.requests.get(request.request_id).claim
    block_ids = engine.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
    held = engine.worker._memory.gather(block_ids, request.num_prompt_tokens)
    first = outputs[0].outputs[0].logprobs[0]
    llm.abort_request(["held"])
    while llm.has_unfinished_requests():
        llm.step()
    tokens = np.array(request.prompt_token_ids, np.int32)
    return Prefilled(tokens, claim, held.keys, held.values, {token: each.logprob for token, each in first.items()})


class GivenRows(RecomputePolicy):
    """Computes what an engine has computed."""

    name = "given"

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def select(self, reuse: Any, tokens: float, probe: Any, block: int) -> Selection:
        chosen = np.zeros_like(reuse.reused)
        for start, end in self._claim.rows:
            chosen[start:end] = True
        return Selection(chosen, correction=self._claim.correction)


def gaps_of(claim: Claim, prompt_tokens: int) -> list[Row]:
    """All that no span covers, the prompt behind the claim included."""
    edges = [claim.start, *(at for span in claim.spans for at in (span.target_start, span.target_end)), prompt_tokens]
    runs = zip(edges[::2], edges[1::2], strict=True)
    return [Row(start, end - start, RowKind.GAP) for start, end in runs if start < end]


def prefill_in_reference(reference: Any, done: Prefilled, donors: Mapping[str, np.ndarray]) -> Any:
    from semblend_core.reference import prefill_reusing

    claim, size = done.claim, int(done.tokens.size)
    plan = Plan("the same", size, claim.start, claim.spans, tuple(gaps_of(claim, size)))
    kept = {name: reference.prefill(tokens) for name, tokens in donors.items()}
    donor_kv = {name: reference.capture(each.workspace, each.token_ids.size) for name, each in kept.items()}
    return prefill_reusing(reference, done.tokens, plan, donor_kv, GivenRows(claim), 1.0).prefill


def kinds_of_tokens(done: Prefilled) -> dict[str, np.ndarray]:
    claim, size = done.claim, done.tokens.size
    computed, moved, corrected = (np.zeros(size, np.bool_) for _ in range(3))
    for start, end in (*claim.rows, (claim.end, size)):
        computed[start:end] = True
    for span in claim.spans:
        inside = slice(span.target_start, span.target_end)
        moved[inside] = True
        corrected[inside] = claim.correction is not None and computed[inside].sum() >= claim.correction.min_rows
    return {
        "gaps": computed & ~moved,
        "rows": computed & moved,
        "relocated": moved & ~computed & ~corrected,
        "corrected": moved & ~computed & corrected,
    }


def worst_error(ours: Any, theirs: Any, where: np.ndarray) -> float:
    """Of any token in any layer, by the size of its vector."""
    import torch

    at = torch.from_numpy(np.flatnonzero(where))
    ours, theirs = (each.index_select(1, at).flatten(2) for each in (ours, theirs))
    return float(((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max())


def donors_of(engine: Any, prompts: list[str], salt: str) -> dict[str, np.ndarray]:
    """Captured by the engine: their tokens by the names that it gave them."""
    for prompt in prompts:
        engine.ask(prompt, salt=salt, tokens=1)
    engine.settle()
    tokens = [np.array(engine.llm.get_tokenizer().encode(prompt), np.int32) for prompt in prompts]
    return {donor_id_of(as_token_ids(each)): each for each in tokens}


UNPROBED = {"probe": "never"}
FEW_ROWS = {"recompute_limit": 0.15}
"""Those of a span fit one small step. What is cut among them is not what the reference engine does."""
CASES = [
    # Donors, prompt, settings, what is among its tokens beside gaps and rows, probes, whether steps have much room.
    pytest.param([HOUSE], NEW_FRONT, {}, {"relocated"}, 0, True, id="one document"),
    pytest.param([HOUSE], OTHER_ORDER, {"quality_tier": "fast"}, {"relocated"}, 0, True, id="seams"),
    pytest.param([HOUSE], OTHER_ORDER, {}, {"corrected"}, 1, True, id="another order"),
    pytest.param(ONE_EACH, OTHER_ORDER, {}, {"corrected"}, 1, True, id="several donors"),
    pytest.param(ONE_EACH, OTHER_ORDER, FEW_ROWS, {"corrected"}, 1, False, id="over several steps"),
    pytest.param(ONE_EACH, OTHER_ORDER, UNPROBED, {"corrected"}, 0, True, id="unprobed"),
    pytest.param(
        ONE_EACH, OTHER_ORDER, UNPROBED | FEW_ROWS, {"corrected"}, 0, False, id="unprobed, over several steps"
    ),
]


@pytest.mark.parametrize(("prompts", "prompt", "settings", "kinds", "probes", "at_once"), CASES)
def test_the_same_plan_leaves_the_same_kv(
    engine: Any,
    reference: Any,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    prompts: list[str],
    prompt: str,
    settings: dict[str, Any],
    kinds: set[str],
    probes: int,
    at_once: bool,
) -> None:
    salt = request.node.name
    donors = donors_of(engine, prompts, salt)
    admission = engine.side.admission
    monkeypatch.setattr(admission, "_settings", replace(admission._settings, **settings))
    monkeypatch.setattr(admission, "probes", ProbeTrust(admission._settings))
    if not at_once:
        monkeypatch.setattr(engine.side.admission, "room", RowRoom(64, 8))
    before = engine.stats().probes.get(ProbeEnd.CHOSE, 0)
    done = prefill(engine, prompt, salt)
    assert engine.stats().probes.get(ProbeEnd.CHOSE, 0) == before + probes
    expected = prefill_in_reference(reference, done, donors)

    size = done.tokens.size
    expected_keys, expected_values = expected.workspace.keys[:, :size], expected.workspace.values[:, :size]
    found = {kind: where for kind, where in kinds_of_tokens(done).items() if where.any()}
    assert set(found) >= kinds | {"gaps", "rows"}
    errors = {
        kind: max(worst_error(done.keys, expected_keys, where), worst_error(done.values, expected_values, where))
        for kind, where in found.items()
    }
    assert max(errors.values()) < MOST_ERROR, errors
    logits = expected.logits.log_softmax(-1)
    assert max(abs(value - float(logits[token])) for token, value in done.logits.items()) < 2e-3
    engine.check_integrity()


@pytest.mark.exhaustive
def test_so_it_is_in_the_whole_model() -> None:
    """In a process of its own: there is one engine in each."""
    this = [f"{__file__}::{test_the_same_plan_leaves_the_same_kv.__name__}"]
    options = ["-c", str(Path(__file__).parents[4] / "pyproject.toml"), "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "SEMBLEND_TEST_LAYERS": "30"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *this], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{len(CASES)} passed" in done.stdout
