"""The real engine through its Python API: SmolLM2 in float32, overlapped scheduler, scheduler in its own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from archive import CASES, QUESTIONS, first, recipient
from running_engine import COMPLETE, RunningEngine, cached, divergence
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

from semblend_core import DonorOffer, LookupRequest, Plan, Settings, create_provider
from semblend_core.kv import DonorKv, QuestionAttention
from semblend_core.recompute import Corrected, MeanShift, Probe, RecomputePolicy, Reuse, Selection, choose_policy
from semblend_core.reference import Observation, ReferenceEngine, prefill_reusing
from semblend_core.serving import PROBED_RUN, Namespaces, probing_of, token_ids_of
from semblend_core.testing import wait_until
from semblend_sglang import patch_radix_cache


@pytest.fixture(scope="module")
def running(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    folder = tmp_path_factory.mktemp("running")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SEMBLEND_AUDIT_PATH", str(folder / "audit.jsonl"))
        environment.setenv("SEMBLEND_SGLANG_PROVIDER", "kv_on_record:provider")
        environment.setenv("KV_ON_RECORD", str(folder / "kv"))
        environment.setattr(ServerArgs, COMPLETE, getattr(ServerArgs, COMPLETE))  # As it was, afterwards.
        assert patch_radix_cache(), "the call of earlier integrations does not work"
        engine = RunningEngine(model_folder, folder / "audit.jsonl", kv=folder / "kv", backend=None)
        yield engine
        engine.close()


@pytest.mark.parametrize(
    "questions", [QUESTIONS[:1], pytest.param(QUESTIONS, marks=pytest.mark.exhaustive)], ids=["one", "all"]
)
@pytest.mark.parametrize("name", CASES)
def test_what_was_computed_before_is_reused_and_answers_stay_close(
    running: RunningEngine, name: str, questions: tuple[str, ...]
) -> None:
    donors, _, bound = CASES[name]
    salt = f"{name}, {len(questions)}"
    for donor in donors:
        running.ask(donor, salt=salt, tokens=1)
    far = []
    for question in questions:
        prompt, before = recipient(name, question), running.confirmed()
        reused = running.ask(prompt, salt=salt)
        confirmed = running.confirmed() - before
        cold = running.ask(prompt, salt=f"{salt}, {question}, another tenant")
        # Of several passages the tier may compute half.
        assert confirmed > (0.4 if name.startswith("passages") else 0.6) * cold["meta_info"]["prompt_tokens"]
        opening = cached(reused) - confirmed  # Exact, and left by those who asked before.
        assert 0 <= opening < 0.1 * cold["meta_info"]["prompt_tokens"], "what was computed is counted as cached"
        assert cached(cold) == 0, "another tenant was served from this one's KV"
        far.append(divergence(cold, reused))
    assert sum(far) / len(far) < bound
    probe = running.ask(prompt, salt=salt, wish="off")
    assert cached(probe) < 0.1 * cold["meta_info"]["prompt_tokens"], "the exact cache holds approximate KV"
    assert divergence(cold, probe) < 1e-3


def test_several_requests_reuse_in_one_batch(running: RunningEngine) -> None:
    running.ask(first(), salt="batch", tokens=1)
    before = running.confirmed()
    together = running.ask([recipient(name) for name in list(CASES)[:2]], salt="batch")
    assert running.confirmed() - before == sum(map(cached, together))
    assert all(cached(answer) > 300 for answer in together)


def test_a_conversation_goes_on_from_what_was_served_approximately(running: RunningEngine) -> None:
    running.ask(first(), salt="turns", tokens=1)
    prompt = recipient("new instruction")
    for turn in range(4):
        before = running.confirmed()
        answer = running.ask(prompt, salt="turns", tokens=12)
        cold = running.ask(prompt, salt=f"turns, {turn}", wish="off", tokens=12)
        tokens = cold["meta_info"]["prompt_tokens"]
        if turn:
            assert tokens - cached(answer) < 40, "the history is computed again"
            assert running.confirmed() - before > 0.9 * cached(answer)
        assert divergence(cold, answer) < 0.1
        prompt = f"{prompt}{answer['text']}\n\nQuestion: {QUESTIONS[turn % 3]}\nAnswer:"
    assert cached(running.ask(prompt, salt="turns", wish="off", tokens=1)) < 100, (
        "the exact cache holds more than exact KV"
    )


def test_an_opening_that_many_ask_for_becomes_exact(running: RunningEngine) -> None:
    running.ask(first(), salt="many", tokens=1)
    for number in range(4):
        asked = running.ask(recipient("new instruction", f"Question {number}?"), salt="many", tokens=1)
    running.let_scheduler_idle()
    plain = running.ask(recipient("new instruction", "And now?"), salt="many", wish="off", tokens=1)
    assert cached(plain) > 0.9 * asked["meta_info"]["prompt_tokens"]
    cold = running.ask(recipient("new instruction", "And now?"), salt="few", wish="off", tokens=1)
    assert divergence(cold, plain) < 1e-3
    # SGLang refuses while it looks after the answer that it has just given.
    wait_until(lambda: running.engine.flush_cache().success, "a flush, which a piece may be in the way of")
    assert cached(running.ask(first(), salt="many", wish="off", tokens=1)) == 0


def test_an_exact_prefix_is_left_to_sglang(running: RunningEngine) -> None:
    prompt = first("Which town?")
    running.ask(prompt, salt="exact", tokens=1)
    again = running.ask(prompt, salt="exact", tokens=1)
    assert cached(again) == again["meta_info"]["prompt_tokens"] - 1


def test_a_request_for_prompt_logprobs_is_served_cold_and_counted(running: RunningEngine) -> None:
    running.ask(first(), salt="logprobs", tokens=1)
    answer = running.ask(recipient("new instruction"), salt="logprobs", tokens=1, logprobs_from=0)
    assert cached(answer) == 0
    assert len(answer["meta_info"]["input_token_logprobs"]) == answer["meta_info"]["prompt_tokens"]
    assert running.declines()[-1] == "unsupported_request"


@pytest.mark.skipif(not hasattr(SamplingParams, "beam_width"), reason="this SGLang has no beam search")
def test_beam_search_is_served_cold_and_counted(running: RunningEngine) -> None:
    running.ask(first(), salt="beams", tokens=1)
    prompt = recipient("new instruction")
    answers = [running.search(prompt, salt=salt, beams=3) for salt in ("beams", "beams", "another tenant's beams")]
    assert [cached(answer) for answer in answers] == [0, 0, 0], "SGLang keeps no prompt of a beam search"
    assert running.declines()[-3:] == ["unsupported_request"] * 3
    assert len({answer["text"] for answer in answers}) == 1
    assert cached(running.ask(prompt, salt="beams", tokens=1)) > 300, "what is asked without beams is reused"


def test_the_engine_finds_no_leak_when_it_is_idle(running: RunningEngine) -> None:
    """Its check is strict in these tests: a slot too few, and the scheduler ends itself."""
    running.let_scheduler_idle()
    assert running.ask("Say yes.", salt="alive", tokens=2)["meta_info"]["completion_tokens"] == 2


def plan_for(donors: list[Any], asked: Any) -> Plan:
    """What the adapter's provider finds for this prompt: the same one, asked in this process."""
    settings = Settings(lookup_budget_ms=600_000.0, sharing="all")
    namespaces = Namespaces(model="m", revision="r", tokenizer="t", dtype="f", kv_layout="l", block_size=1)
    namespace = namespaces.of(None, None)
    provider = create_provider(settings, engine="sglang")
    for number, donor in enumerate(donors):
        provider.offer_donor(DonorOffer(f"donor-{number}", namespace, donor))
    plan = provider.lookup(LookupRequest("asked", namespace, asked)).plan
    assert plan is not None
    return plan


@pytest.fixture(scope="module")
def reference() -> ReferenceEngine:
    """An engine that shares nothing with SGLang, around the same weights."""
    return ReferenceEngine.load()


class GivenRows(RecomputePolicy):
    """Computes what an engine has computed."""

    name = "given"

    def __init__(self, rows: list[tuple[int, int]]) -> None:
        self._rows = rows

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        chosen = np.zeros_like(reuse.reused)
        for start, end in self._rows:
            chosen[start:end] = True
        return Selection(chosen)


@pytest.mark.parametrize(
    ("name", "probed"),
    [
        ("passages in another order", True),
        ("passages of four requests", False),
        pytest.param("passages in another order", False, marks=pytest.mark.exhaustive),
        pytest.param("passages of four requests", True, marks=pytest.mark.exhaustive),
    ],
)
def test_after_prefill_the_pool_holds_the_kv_that_the_reference_engine_holds(
    running: RunningEngine, reference: ReferenceEngine, name: str, probed: bool
) -> None:
    """For the same plan, in every layer, whether a token was relocated and corrected, chosen for a row, or in a gap."""
    texts, salt = CASES[name][0], f"{name}, {probed}, recorded"
    encode = running.engine.tokenizer_manager.tokenizer.encode
    donors, asked = [token_ids_of(encode(text)) for text in texts], token_ids_of(encode(recipient(name)))
    with running.recording(blind=not probed) as recorded:
        for text in texts:
            running.ask(text, salt=salt, tokens=1)
        answer = running.ask(recipient(name), salt=salt, tokens=1)
        held, scores = recorded.request(), recorded.scores() if probed else None
    assert held["tokens"] == asked.tolist()

    plan = plan_for(donors, asked)
    prompts = {f"donor-{number}": donor for number, donor in enumerate(donors)}
    kept = {name: reference.capture(reference.prefill(donor).workspace, donor.size) for name, donor in prompts.items()}
    if scores is None:
        choice = choose_policy("balanced", plan, probing=False)
        assert choice is not None
        policy, budget = choice.policy, choice.budget
    else:
        torch.testing.assert_close(scores, scores_of(reference, asked, plan, kept), rtol=2e-3, atol=1e-3)
        policy, budget = Corrected(GivenRows(held["rows"]), MeanShift(**held["correction"])), 1.0
    expected = prefill_reusing(reference, asked, plan, kept, policy, budget)
    assert expected.recompute.correction is not None
    assert cached(answer) == expected.prefill.reused_tokens

    workspace = expected.prefill.workspace.copy_out(asked.size)
    kinds = kinds_of_tokens(expected.recompute.plan)
    assert {"gap", "corrected", "question"} < set(kinds)
    for ours, theirs in ((held["keys"], workspace.keys), (held["values"], workspace.values)):
        for kind in set(kinds):
            at = torch.from_numpy(kinds == kind)
            error = (ours[:, at] - theirs[:, at]).flatten(1).norm(dim=1) / theirs[:, at].flatten(1).norm(dim=1)
            assert float(error.max()) < 1e-3, f"{kind} tokens differ in layer {int(error.argmax())}"
    logits = expected.prefill.logits.log_softmax(-1)
    top = answer["meta_info"]["output_top_logprobs"][0]
    assert max(abs(value - float(logits[token])) for value, token, _ in top) < 2e-3


def scores_of(reference: ReferenceEngine, asked: Any, plan: Plan, donors: dict[str, DonorKv]) -> torch.Tensor:
    """Where the question looks in the reference engine, over what it has placed of ``plan``."""
    probing = probing_of(plan, "balanced", limit=None, model_layers=reference.geometry.layers, block=PROBED_RUN)
    assert probing is not None
    rows = np.concatenate([np.arange(*run) for run in probing.rows])
    start, end = probing.question
    keys: dict[int, torch.Tensor] = {}
    asking = torch.arange(start, end)
    attention = QuestionAttention(asking, probing.layers, lambda layers: [keys[layer] for layer in layers])

    def look(seen: Observation) -> None:
        keys[seen.layer] = seen.keys.transpose(0, 1)
        attention.add(seen.layer, seen.queries[:, start - end :].transpose(0, 1), seen.scaling)

    workspace = reference.place_plan(plan, donors)
    reference.compute(workspace, asked[rows], rows, logits="none", observer=look, observed_layers=probing.layers)
    return torch.from_numpy(attention.scores())


def kinds_of_tokens(plan: Plan) -> Any:
    kinds = np.full(plan.prompt_tokens, "corrected", dtype="<U9")
    for row in plan.rows:
        kinds[row.start : row.end] = "question" if row.end == plan.prompt_tokens else str(row.kind)
    return kinds
