"""Rows by a probe: a first step shows where the question looks, and the next computes that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from semblend_core import ProbeEnd
from semblend_core.serving import Claim, ProbeTrust
from semblend_core.serving.worker import Look

PASSAGES = [
    f"Chapter {name}. "
    + " ".join(f"On day {n} the {name} made {n * 7 % 50 + 3} knots and {n * 13 % 90 + 5} miles." for n in range(1, 13))
    for name in ("Albatross", "Bonaventure", "Calypso", "Dolphin")
]
SEAM, RUN = 64, 4
"""Tokens at a span's front that are computed whatever the question is, at most; and what a probe chooses at a time."""
BODY = "Four logs.\n\n" + "\n\n".join(PASSAGES)
RECIPIENT = f"{BODY}\n\nQuestion: how many miles did the Calypso make on day 7?\nAnswer:"


def with_donors(engine: Any, salt: str) -> None:
    for number, passage in enumerate(PASSAGES):
        engine.ask(f"Log {number}:\n{passage}\n\nTitle:", salt=salt, tokens=1)
    engine.settle()


def probes(engine: Any, end: ProbeEnd) -> int:
    return int(engine.stats().probes.get(end, 0))


@pytest.fixture
def choices(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Claim, np.ndarray, Claim]]:
    """Claims with what their probes showed, and what was made of it."""
    seen: list[tuple[Claim, np.ndarray, Claim]] = []
    choose = engine.side.admission.choose

    def noted(life: Any, claim: Claim, scores: np.ndarray) -> Claim:
        chosen = choose(life, claim, scores)
        seen.append((claim, scores, chosen))
        return chosen

    monkeypatch.setattr(engine.side.admission, "choose", noted)
    monkeypatch.setattr(engine.side.admission, "probes", ProbeTrust(engine.side.admission._settings))
    return seen


def without_probes(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    admission = engine.side.admission
    monkeypatch.setattr(admission, "probes", ProbeTrust(replace(admission._settings, probe="never")))


def positions(claim: Claim) -> np.ndarray:
    return np.array([at for start, end in claim.rows for at in range(start, end)])


def scores_in_reference(claim: Claim, tokens: np.ndarray, donors: list[np.ndarray]) -> Any:
    """The same look in the reference engine."""
    import torch

    from semblend_core import as_token_ids, donor_id_of
    from semblend_core.kv import QuestionAttention
    from semblend_core.reference import ReferenceEngine
    from semblend_core.testing import shallow_model_folder

    assert claim.probing is not None
    reference, plan = ReferenceEngine.load(shallow_model_folder()), claim.probing.plan
    kept = {donor_id_of(as_token_ids(each)): reference.prefill(each).workspace.copy_out(each.size) for each in donors}
    rows = np.array([at for start, end in claim.probing.rows for at in range(start, end)])
    start, end = claim.probing.question
    keys: dict[int, Any] = {}
    asking = torch.arange(start, end)
    attention = QuestionAttention(asking, claim.probing.layers, lambda layers: [keys[layer] for layer in layers])

    def look(seen: Any) -> None:
        keys[seen.layer] = seen.keys.transpose(0, 1)
        attention.add(seen.layer, seen.queries.transpose(0, 1)[start - end :], seen.scaling)

    workspace = reference.place_plan(plan, kept)
    reference.compute(workspace, tokens[rows], rows, observer=look, observed_layers=claim.probing.layers)
    scores = attention.scores()
    assert scores is not None
    return scores


def test_rows_are_where_the_question_looks(engine: Any, choices: Any, divergence: Any) -> None:
    with_donors(engine, "probed")
    chose, confirmed = probes(engine, ProbeEnd.CHOSE), engine.stats().confirmed_tokens
    reused = engine.ask(RECIPIENT, salt="probed")
    cold = engine.ask(RECIPIENT, salt="probed, cold", reuse="off")
    ((claim, scores, chosen),) = choices
    assert probes(engine, ProbeEnd.CHOSE) == chose + 1
    assert reused.cached_tokens == engine.stats().confirmed_tokens - confirmed == chosen.reused_tokens
    assert divergence(cold, reused) < 0.1

    encode = engine.llm.get_tokenizer().encode
    donors = [np.array(encode(f"Log {n}:\n{each}\n\nTitle:"), np.int32) for n, each in enumerate(PASSAGES)]
    expected = scores_in_reference(claim, np.array(encode(RECIPIENT), np.int32), donors)
    np.testing.assert_allclose(scores, expected, rtol=2e-3, atol=1e-6)
    runs = np.arange(0, len(expected), RUN)
    inside = [span.target_start + SEAM <= at <= span.target_end - RUN for span in claim.spans for at in runs]
    runs = runs[np.any(np.reshape(inside, (len(claim.spans), -1)), axis=0)]
    most = max(runs, key=lambda at: expected[at : at + RUN].mean())
    behind = np.arange(chosen.end, len(expected))  # vLLM computes the prompt behind the claim anyway.
    assert np.isin(np.arange(most, most + RUN), [*positions(chosen), *behind]).all()
    assert not np.isin(np.arange(most, most + RUN), positions(claim)).any()
    engine.check_integrity()


def test_it_takes_two_steps(engine: Any, choices: Any) -> None:
    from vllm import SamplingParams

    with_donors(engine, "two steps")
    llm = engine.llm.llm_engine
    llm.add_request("quick", {"prompt": RECIPIENT, "cache_salt": "two steps"}, SamplingParams(max_tokens=1))
    assert not llm.step()
    assert llm.step(), "the first token"
    assert len(choices) == 1
    engine.check_integrity()


def test_another_question_looks_elsewhere(engine: Any, choices: Any) -> None:
    with_donors(engine, "two questions")
    engine.ask(RECIPIENT, salt="two questions")
    again = engine.ask(RECIPIENT, salt="two questions")
    ((_, _, first),) = choices
    assert again.cached_tokens > first.reused_tokens, "taken where it lies"
    engine.empty_own_cache()
    engine.ask(f"{BODY}\n\nQuestion: which ship was the first?\nAnswer:", salt="two questions")
    _, (_, _, second) = choices
    assert first.rows != second.rows
    engine.check_integrity()


def test_nothing_of_it_is_in_the_exact_cache(engine: Any, choices: Any) -> None:
    with_donors(engine, "probed, pure")
    engine.ask(RECIPIENT, salt="probed, pure")
    exact = engine.ask(RECIPIENT, salt="probed, pure", reuse="off")
    ((_, _, chosen),) = choices
    assert exact.cached_tokens <= chosen.first_approximate
    assert exact.text == engine.ask(RECIPIENT, salt="probed, pure, cold", reuse="off").text


def test_switched_off(engine: Any, choices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_donors(engine, "unprobed")
    without_probes(engine, monkeypatch)
    confirmed = engine.stats().confirmed_tokens
    engine.ask(RECIPIENT, salt="unprobed")
    assert not choices
    assert engine.stats().confirmed_tokens > confirmed


def blind(*_: Any) -> None:
    raise RuntimeError("nothing can be seen")


FAILURES = {
    "a layer that cannot be seen": ("add", blind),
    "scores that cannot be read": ("scores", blind),
    "not every layer": ("scores", lambda look: None),
}


@pytest.mark.parametrize("failure", [*FAILURES, "no word of it"])
def test_a_probe_that_fails_leaves_the_tiers_other_rows(
    engine: Any, choices: Any, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    salt = f"blind, {failure}"
    with_donors(engine, salt)
    failed, confirmed = probes(engine, ProbeEnd.FAILED), engine.stats().confirmed_tokens
    with monkeypatch.context() as broken:
        if failure in FAILURES:
            broken.setattr(Look, *FAILURES[failure])
        else:
            broken.setattr(engine.worker, "_tell_scores", lambda: engine.worker._looks.clear())
        answer = engine.ask(RECIPIENT, salt=salt)
    assert not choices
    assert probes(engine, ProbeEnd.FAILED) == failed + 1
    assert answer.cached_tokens == engine.stats().confirmed_tokens - confirmed > 0
    engine.empty_own_cache()
    without_probes(engine, monkeypatch)
    assert engine.ask(RECIPIENT, salt=salt).text == answer.text
    engine.check_integrity()


def test_a_load_that_fails_is_a_cold_prefill(engine: Any, choices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_donors(engine, "probed, broken load")
    cold = engine.ask(RECIPIENT, salt="probed, broken load, cold", reuse="off")
    ended = probes(engine, ProbeEnd.ENDED)
    with monkeypatch.context() as broken:
        broken.setattr(engine.worker._memory, "scatter", blind)
        answer = engine.ask(RECIPIENT, salt="probed, broken load")
    assert answer.text == cold.text
    assert probes(engine, ProbeEnd.ENDED) == ended + 1
    assert not choices
    engine.check_integrity()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_abort_in_between_gives_everything_back(engine: Any, choices: Any, steps: int) -> None:
    from vllm import SamplingParams

    salt = f"probed, abort {steps}"
    with_donors(engine, salt)
    free = engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    llm = engine.llm.llm_engine
    llm.add_request("doomed", {"prompt": RECIPIENT, "cache_salt": salt}, SamplingParams(max_tokens=4))
    for _ in range(steps):
        llm.step()
    llm.abort_request(["doomed"])
    while llm.has_unfinished_requests():
        llm.step()
    engine.ask("Is anybody there?", salt=salt, tokens=1)  # vLLM cleans up in the steps that follow.
    assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    engine.check_integrity()
