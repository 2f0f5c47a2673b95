"""Time to first token of a long document behind a new instruction, cold and reused, in one process."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from quality_data.measure import find_plan
from quality_data.work import Study
from semblend_core.recompute import choose_policy
from semblend_core.reference import prefill_reusing

DOCUMENT_TOKENS = 4096


def measure_ttft(study: Study, rounds: int = 3) -> dict[str, Any]:
    """Medians of alternating prefills; the reused one includes placing and everything its policy does."""
    engine, case = study.engine, study.cases_of(DOCUMENT_TOKENS).of("new_task", 0, 1)[0]
    plan = find_plan(case)
    assert plan is not None
    choice = choose_policy("balanced", plan)
    assert choice is not None
    tokens = np.array(case.recipient, np.int32)
    (donor_id, donor_tokens), *_ = case.donors.items()
    donor = engine.capture(engine.prefill(donor_tokens, room=0).workspace, len(donor_tokens))
    cold, reused = [], []
    for _ in range(rounds):
        whole = engine.prefill(tokens, room=0)
        cold.append(whole.seconds)
        answer = prefill_reusing(
            engine, tokens, plan, {donor_id: donor}, choice.policy, choice.budget, exact_prefix=whole.workspace, room=0
        )
        reused.append(answer.prefill.seconds)
    return {
        "ttft_ratio_4k": statistics.median(cold) / statistics.median(reused),
        "ttft_4k_prompt_tokens": int(tokens.size),
        "ttft_4k_computed_tokens": answer.prefill.computed_tokens,
    }
