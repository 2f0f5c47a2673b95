"""vLLM with rows computes what the reference engine computes: the same spans relocated, the same tokens computed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from semblend_core import LookupRequest, Outcome, OutcomeKind, Plan, Row, RowKind
from semblend_core.serving import Claim

SIDES = ("north", "east")
PARTS = [
    " ".join(f"Room {n} on floor {floor} has {n * floor % 9 + 1} windows to the {SIDES[n % 2]}." for n in range(12))
    for floor in (3, 5, 7)
]
DONOR = "A plan of the house.\n\n" + "\n\n".join(PARTS) + "\n\nQuestion: which floor is brightest?\nAnswer:"
MOVED = "\n\nNext floor. ".join(PARTS[i] for i in (2, 0, 1))
RECIPIENT = f"System: you are an architect.\n\n{MOVED}\n\nQuestion: why?\nAnswer:"


@pytest.fixture(scope="module")
def reference() -> Any:
    from semblend_core.reference import ReferenceEngine
    from semblend_core.testing import shallow_model_folder

    return ReferenceEngine.load(shallow_model_folder())


def tokens_of(engine: Any, prompt: str) -> np.ndarray:
    return np.array(engine.llm.get_tokenizer().encode(prompt), np.int32)


def claim_for(engine: Any, tokens: np.ndarray, salt: str) -> Claim:
    """What the adapter is about to claim for this prompt."""
    follower = engine.side._follow
    request = SimpleNamespace(lora_request=None, cache_salt=salt)
    namespace = follower.namespace(request)
    result = engine.side.provider.lookup(LookupRequest("ask ahead", namespace, tokens))
    engine.side.provider.report_outcome(Outcome("ask ahead", OutcomeKind.COLD))
    life = SimpleNamespace(request=request, request_id="ask ahead", namespace=namespace)
    claim = engine.side.admission._claim_for(life, result.plan)
    assert isinstance(claim, Claim)
    return claim


def test_rows_and_spans_give_the_reference_engines_logits(
    engine: Any, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor, recipient = tokens_of(engine, DONOR), tokens_of(engine, RECIPIENT)
    engine.ask(DONOR, salt="reference", tokens=1, reuse={"mode": "on"})
    engine.settle()
    fast = replace(engine.side.admission._settings, quality_tier="fast")
    monkeypatch.setattr(engine.side.admission, "_settings", fast)
    claim = claim_for(engine, recipient, "reference")
    answer = engine.ask(RECIPIENT, salt="reference", tokens=1)
    assert len(claim.spans) >= 3
    assert len(claim.rows) >= 3

    rows = [Row(start, end - start, RowKind.CHOSEN) for start, end in claim.rows]
    rows.append(Row(claim.end, recipient.size - claim.end, RowKind.CHOSEN))
    plan = Plan("reference", int(recipient.size), 0, claim.spans, tuple(rows))
    kept = reference.capture(reference.prefill(donor).workspace, donor.size)
    prefill = reference.sparse_prefill(recipient, plan, {claim.spans[0].donor_id: kept})

    expected = prefill.logits.log_softmax(-1)
    worst = max(abs(value - float(expected[token])) for token, value in answer.logprobs[0].items())
    assert answer.cached_tokens == claim.reused_tokens
    assert worst < 2e-3
