"""Rows that one step cannot hold: which of them go into it, and what is corrected by them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semblend_core import Namespace, Span
from semblend_core.recompute import MeanShift
from semblend_core.serving import Claim, LoadOrder, StepWork
from semblend_vllm.scheduler.long_claims import LongClaim

SPANS = (Span(20, "a", 5, 100), Span(130, "b", 0, 100))
ROWS = ((0, 40), (60, 70), (120, 150), (200, 210))
"""A gap and a seam, chosen tokens; the same for the second span."""
NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="d", kv_layout="k", block_size=16, adapter=None, salt="tenant"
)


def long_claim(correction: MeanShift | None) -> LongClaim:
    claim = Claim(0, 224, SPANS, ROWS, correction)
    life: Any = SimpleNamespace(request_id="r")
    return LongClaim(life, claim, LoadOrder("r", NAMESPACE, [], SPANS, 100, False), 224, ROWS)


def steps(claim: LongClaim, most_tokens: int, most_rows: int = 8) -> list[tuple[Any, list[str]]]:
    """The rows of each step, and the spans that are corrected by them."""
    made = []
    while claim.left:
        claim.choose(most_tokens, most_rows)
        work = StepWork()
        claim.add_to(work)
        made.append((claim.chosen, [span.donor_id for order in work.corrections for span in order.spans]))
    return made


@pytest.mark.parametrize("most_tokens", [60, 70, 85])
def test_rows_of_one_span_stay_together(most_tokens: int) -> None:
    assert steps(long_claim(MeanShift()), most_tokens) == [
        (((0, 40), (60, 70), (120, 130)), ["a"]),
        (((130, 150), (200, 210)), ["b"]),
    ]


def test_without_a_correction_a_step_takes_what_it_can() -> None:
    assert [rows for rows, _ in steps(long_claim(None), 75)] == [
        ((0, 40), (60, 70), (120, 145)),
        ((145, 150), (200, 210)),
    ]


def test_where_a_step_cannot_hold_them_a_span_is_corrected_by_its_first_rows_and_once() -> None:
    assert steps(long_claim(MeanShift()), 99, most_rows=1) == [
        (((0, 40),), ["a"]),
        (((60, 70),), []),
        (((120, 150),), ["b"]),
        (((200, 210),), []),
    ]
