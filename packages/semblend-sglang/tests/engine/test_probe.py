"""A first small forward shows where the question looks, and the real one computes that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from toy_model import exact_numbers

from semblend_core import ProbeEnd
from semblend_core.serving import MOST_FAILED_PROBES
from semblend_core.testing import passage
from semblend_sglang.worker.looking import Look

PARTS = [passage(seed, 300) for seed in range(10, 14)]
LOOKS_AT = (223, 526, 839, 1162)
"""Far from every seam."""


@pytest.fixture(params=[(1, "python"), (16, "rust")], ids=["page-1-python", "page-16-rust"])
def rig(request: pytest.FixtureRequest, new_rig: Callable[..., Any]) -> Any:
    page_size, core = request.param
    rig = new_rig(
        page_size=page_size,
        core=core,
        slots=16384,
        most_sequences=64,
        quality_tier="balanced",
        lookup_budget_ms=600_000.0,
    )
    for number, part in enumerate(PARTS):
        rig.serve([*passage(20 + number, 40 + number), *part], f"donor-{number}")
    rig.looks_at = LOOKS_AT
    rig.forwards.clear()
    return rig


def prompt_of(order: tuple[int, ...], seed: int) -> list[int]:
    return [token for n in order for token in (*passage(seed + n, 3), *PARTS[n])] + passage(seed + 9, 12)


def claim_of(rig: Any, request: Any) -> Any:
    return rig.side.requests.of_request(request).claim


def is_computed(claim: Any, position: int) -> bool:
    return any(start <= position < end for start, end in claim.rows)


def probes(rig: Any) -> dict[ProbeEnd, int]:
    return dict(rig.side.provider.stats().probes)


def check(rig: Any, request: Any) -> None:
    slots = rig.slots_of(request)
    assert rig.tokens_at(slots) == list(request.origin_input_ids)[: len(slots)]
    assert rig.key_error(slots, list(range(len(slots)))) < 1e-4
    assert request.cached_tokens == claim_of(rig, request).reused_tokens, "SGLang shows what was computed as cached"
    rig.check_accounts()


def test_what_the_question_looks_at_is_computed(rig: Any) -> None:
    request = rig.submit(prompt_of((2, 0, 3, 1), 30), "asked")
    rig.step()
    claim = claim_of(rig, request)
    assert all(is_computed(claim, position) for position in LOOKS_AT)
    assert claim.correction is not None
    assert claim.row_tokens <= 24 + 0.5 * 1200
    assert probes(rig) == {ProbeEnd.CHOSE: 1}
    check(rig, request)
    first, second = rig.forwards
    assert first < 60, "it computes what no span covers, and no more"
    assert second == claim.row_tokens + len(request.origin_input_ids) - claim.end
    rig.finish(request)
    rig.check_accounts()


def test_requests_of_one_batch_are_probed_together(rig: Any) -> None:
    orders = ((2, 0, 3, 1), (1, 3, 0, 2))
    asked = [rig.submit(prompt_of(order, 30 + 20 * n), f"asked-{n}") for n, order in enumerate(orders)]
    others = [rig.submit(passage(70, 100), "cold"), rig.submit([*passage(71, 20), *PARTS[0]], "one place")]
    rig.step()
    assert len(rig.forwards) == 2
    assert probes(rig) == {ProbeEnd.CHOSE: 2}
    for request in asked:
        assert all(is_computed(claim_of(rig, request), position) for position in LOOKS_AT)
        check(rig, request)
    assert rig.numbers_at(rig.slots_of(others[0])) == exact_numbers(others[0].origin_input_ids)


def test_where_it_shows_nothing_the_tier_has_its_other_rows_and_soon_nobody_asks(
    rig: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(look: Look, layer: Any, queries: Any) -> None:
        raise RuntimeError("a fault that the test asked for")

    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(Look, "layer_has_attended", fails)
    for number in range(MOST_FAILED_PROBES + 2):
        request = rig.submit(prompt_of((2, 0, 3, 1), 30 + 10 * number), f"asked-{number}")
        rig.step()
        claim = claim_of(rig, request)
        assert claim.correction is not None
        assert [is_computed(claim, position) for position in (*LOOKS_AT, 5, 320)] == [*[False] * 4, True, True]
        check(rig, request)
        rig.finish(request)
    assert probes(rig) == {ProbeEnd.FAILED: MOST_FAILED_PROBES}
    assert len(rig.forwards) == 2 * MOST_FAILED_PROBES + 2
    assert any("no more probes" in record.message for record in caplog.records)


def test_rows_are_joined_where_the_batch_has_few_places(new_rig: Callable[..., Any], rig: Any) -> None:
    rig.side.limits = type(rig.side.limits)(rig.side.limits.row_tokens, 9)
    request = rig.submit(prompt_of((2, 0, 3, 1), 30), "asked")
    rig.step()
    assert len(claim_of(rig, request).rows) <= 8
    assert sum(probes(rig).values()) == 1
    check(rig, request)


def test_it_can_be_switched_off(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(slots=16384, quality_tier="balanced", probe="never", lookup_budget_ms=600_000.0)
    for number, part in enumerate(PARTS):
        rig.serve([*passage(20 + number, 40 + number), *part], f"donor-{number}")
    rig.serve(prompt_of((2, 0, 3, 1), 30), "asked")
    assert probes(rig) == {}
    assert len(rig.forwards) == len(PARTS) + 1
