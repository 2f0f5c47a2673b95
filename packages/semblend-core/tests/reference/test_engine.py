"""The reference engine with the default model: everything that must equal a cold prefill does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `reference`")
pytest.importorskip("transformers", reason="needs the extra `reference`")

import torch

from semblend_core import Plan, Row, RowKind, Span, TokenIds

if TYPE_CHECKING:
    from semblend_core.reference import ReferenceEngine

Encode = Callable[..., TokenIds]
LOGIT_BAR = 1e-3
KEY_BAR = 1e-5
OLD, NEW = "Answer in one sentence.\n", "You are a careful clerk. Read the report below, then answer the question.\n"
QUESTION = "\nQuestion: where were the mail steamers served?\nAnswer:"


def plain_logits(engine: ReferenceEngine, tokens: TokenIds) -> torch.Tensor:
    with torch.no_grad():
        return engine.model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].float()


def worst(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def divergence(logits: torch.Tensor, cold: torch.Tensor) -> float:
    ours, truth = logits.log_softmax(-1), cold.log_softmax(-1)
    return float((truth.exp() * (truth - ours)).sum(-1).mean())


def behind_new_instruction(encode: Encode) -> tuple[TokenIds, TokenIds, Span]:
    """A donor, a recipient with another instruction and a question, and the document they share."""
    document = encode("harbour", "orchard", "telescope", "railway")
    old, new = encode(OLD), encode(NEW)
    donor, recipient = np.concatenate([old, document]), np.concatenate([new, document, encode(QUESTION)])
    return donor, recipient, Span(new.size, "donor", old.size, document.size)


def test_a_cold_prefill_equals_the_plain_model(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("harbour", "orchard", "telescope", QUESTION)
    prefill = engine.prefill(tokens)
    assert worst(prefill.logits, plain_logits(engine, tokens)[-1]) <= LOGIT_BAR
    assert (prefill.computed_tokens, prefill.reused_tokens) == (tokens.size, 0)
    assert prefill.seconds > 0
    assert prefill.workspace.length == tokens.size


def test_the_wrapped_model_still_works_on_its_own(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("orchard")
    ours = plain_logits(engine, tokens)
    engine.model.set_attn_implementation("sdpa")
    try:
        theirs = plain_logits(engine, tokens)
    finally:
        engine.model.set_attn_implementation("semblend")
    assert worst(ours, theirs) <= LOGIT_BAR


def test_decoding_equals_generate(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of(
        "<|im_start|>user\n", "harbour", "What left from the northern pier?<|im_end|>\n<|im_start|>assistant\n"
    )
    prefill = engine.prefill(tokens, room=0)
    answer = engine.decode(prefill, 16)
    with torch.no_grad():
        prompt = torch.from_numpy(tokens.astype(np.int64))[None]
        generated = engine.model.generate(prompt, max_new_tokens=16, do_sample=False)[0, tokens.size :].tolist()
    assert answer == [token for token in generated if token != engine.model.generation_config.eos_token_id]
    assert engine.decode(prefill, 16) == answer
    assert engine.decode(prefill, 3) == answer[:3]
    assert engine.decode(prefill, 16, stop_ids=[answer[2]]) == answer[: answer.index(answer[2])]


def test_scoring_equals_one_forward_over_everything_and_leaves_the_prefill_as_it_was(
    engine: ReferenceEngine, tokens_of: Encode
) -> None:
    tokens, continuation = tokens_of("harbour", QUESTION), tokens_of(" at the southern pier, as the report says.")
    prefill = engine.prefill(tokens)
    before = engine.capture(prefill.workspace, tokens.size)
    scores = engine.score(prefill, continuation)
    everything = plain_logits(engine, np.concatenate([tokens, continuation]))
    assert worst(scores, everything[tokens.size - 1 : -1]) <= LOGIT_BAR
    assert prefill.workspace.length == tokens.size
    after = engine.capture(prefill.workspace, tokens.size)
    assert torch.equal(before.keys, after.keys)
    assert torch.equal(before.values, after.values)
    assert torch.equal(engine.score(prefill, continuation), scores)
    assert torch.equal(engine.score(prefill, continuation[:1])[0], prefill.logits)


def test_reuse_in_place_equals_cold(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("harbour", "orchard", QUESTION)
    cold = engine.prefill(tokens)
    donor = engine.capture(cold.workspace, tokens.size - 1)
    plan = Plan.over("again", tokens.size, 0, [Span(0, "donor", 0, tokens.size - 1)])
    again = engine.sparse_prefill(tokens, plan, {"donor": donor})
    assert worst(again.logits, cold.logits) <= LOGIT_BAR
    assert (again.computed_tokens, again.reused_tokens) == (1, tokens.size - 1)


def test_relocated_keys_of_layer_0_equal_computed_ones(engine: ReferenceEngine, tokens_of: Encode) -> None:
    donor_tokens, tokens, span = behind_new_instruction(tokens_of)
    donor = engine.capture(engine.prefill(donor_tokens).workspace, donor_tokens.size)
    workspace = engine.place_plan(Plan.over("r", tokens.size, 0, [span]), {"donor": donor})
    cold = engine.capture(engine.prefill(tokens).workspace, tokens.size)
    here = slice(span.target_start, span.target_end)
    moved, computed = workspace.keys[0, here], cold.keys[0, here]
    assert float((moved - computed).norm() / computed.norm()) <= KEY_BAR
    assert torch.equal(workspace.values[:, here], donor.values[:, span.donor_start : span.donor_end])
    assert workspace.approximate_from == span.target_start


def test_a_document_behind_a_new_instruction_is_served_almost_as_if_cold(
    engine: ReferenceEngine, tokens_of: Encode
) -> None:
    donor_tokens, tokens, span = behind_new_instruction(tokens_of)
    donor = engine.capture(engine.prefill(donor_tokens).workspace, donor_tokens.size)
    seam = Row(span.target_start, 16, RowKind.SEAM)
    reused = engine.sparse_prefill(tokens, Plan.over("r", tokens.size, 0, [span], [seam]), {"donor": donor})
    cold = engine.prefill(tokens)
    assert reused.reused_tokens == span.length - 16
    assert divergence(reused.logits, cold.logits) < 0.02
    answer = engine.decode(cold, 8)
    assert divergence(engine.score(reused, answer), engine.score(cold, answer)) < 0.02
    # The rotation is what makes it so.
    workspace = engine.workspace(tokens.size)
    engine.place(workspace, span, donor, rotate=lambda keys, shift: keys)
    rows = np.setdiff1d(np.arange(tokens.size), np.arange(span.target_start + 16, span.target_end))
    unturned = engine.compute(workspace, tokens[rows], rows)
    assert divergence(unturned, cold.logits) > 2 * divergence(reused.logits, cold.logits)


@pytest.mark.parametrize("exact", [0, 24])
def test_computing_every_row_equals_cold_whatever_was_placed(
    engine: ReferenceEngine, tokens_of: Encode, exact: int
) -> None:
    donor_tokens, tokens, span = behind_new_instruction(tokens_of)
    donor = engine.capture(engine.prefill(donor_tokens).workspace, donor_tokens.size)
    span = Span(max(span.target_start, exact), "donor", span.donor_start + max(0, exact - span.target_start), 120)
    plan = Plan.over("r", tokens.size, exact, [span], [Row(span.target_start, span.length, RowKind.CHOSEN)])
    cold = engine.prefill(tokens)
    full = engine.sparse_prefill(tokens, plan, {"donor": donor}, exact_prefix=cold.workspace if exact else None)
    assert worst(full.logits, cold.logits) <= LOGIT_BAR
    assert (full.computed_tokens, full.exact_prefix_tokens) == (tokens.size - exact, exact)
    ours, theirs = (engine.capture(each.workspace, tokens.size, approximate=True) for each in (full, cold))
    assert float((ours.keys - theirs.keys).norm() / theirs.keys.norm()) <= 10 * KEY_BAR
    assert float((ours.values - theirs.values).norm() / theirs.values.norm()) <= 10 * KEY_BAR


def test_relocated_kv_is_not_captured_as_a_donor(engine: ReferenceEngine, tokens_of: Encode) -> None:
    donor_tokens, tokens, span = behind_new_instruction(tokens_of)
    donor = engine.capture(engine.prefill(donor_tokens).workspace, donor_tokens.size)
    served = engine.sparse_prefill(tokens, Plan.over("r", tokens.size, 0, [span]), {"donor": donor})
    with pytest.raises(ValueError, match="relocated"):
        engine.capture(served.workspace, tokens.size)
    assert engine.capture(served.workspace, span.target_start).tokens == span.target_start
    plan = Plan.over("r2", tokens.size, span.target_end, [Span(span.target_end, "donor", 0, 1)])
    with pytest.raises(ValueError, match="exact_prefix holds"):
        engine.place_plan(plan, {"donor": donor}, exact_prefix=served.workspace)
