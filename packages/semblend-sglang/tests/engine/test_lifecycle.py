"""Ids that return, requests that vanish, providers that fail, and prompts that must not be given to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from toy_model import exact_numbers

from semblend_core import DeclineReason, OutcomeKind
from semblend_core.testing import passage
from semblend_sglang.scheduler import requests
from semblend_sglang.scheduler.requests import TreeKey
from semblend_sglang.scheduler.side import MOST_POSTPONEMENTS

DOCUMENT = passage(2, 400)


@pytest.fixture
def rig(new_rig: Callable[..., Any]) -> Any:
    return new_rig(lookup_budget_ms=600_000.0)


def prompt_with(document: list[int], seed: int) -> list[int]:
    return [*passage(seed, 80), *document, *passage(seed + 1, 40)]


def check(rig: Any, request: Any) -> None:
    slots = rig.slots_of(request)
    assert rig.tokens_at(slots) == list(request.origin_input_ids)[: len(slots)]
    rig.check_accounts()


def outcomes(rig: Any) -> dict[OutcomeKind, int]:
    return dict(rig.side.provider.stats().outcomes)


def test_an_id_that_returns_with_another_prompt_is_another_request(rig: Any) -> None:
    other = passage(7, 400)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor", salt="a")
    rig.serve([*passage(1, 64), *other], "other donor", salt="b")
    lost = rig.submit(prompt_with(DOCUMENT, 3), "same", salt="a")
    lost.init_next_round_input(rig.tree)
    assert rig.side.claimed(lost) is not None
    rig.waiting.remove(lost)  # SGLang tells nobody.
    request = rig.submit(prompt_with(other, 5), "same", salt="b")
    rig.step()
    check(rig, request)
    assert 350 < request.cached_tokens <= 400
    assert rig.side.provider.stats().declines[DeclineReason.ABORTED] == 1
    assert not lost.skip_radix_cache_insert
    rig.finish(request)
    assert len(rig.side.requests) == 0
    assert rig.side.provider.stats().pinned_requests == 0


def test_an_id_that_returns_does_not_reach_another_tenants_donors(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor", salt="a")
    lost = rig.submit(prompt_with(DOCUMENT, 3), "same", salt="a")
    lost.init_next_round_input(rig.tree)
    rig.waiting.remove(lost)
    request = rig.submit(prompt_with(DOCUMENT, 3), "same", salt="b")
    rig.step()
    assert request.cached_tokens == 0
    check(rig, request)


def test_while_the_first_of_an_id_is_computed_the_second_is_cold(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    first = rig.submit(prompt_with(DOCUMENT, 3), "same")
    rig.step()
    second = rig.submit(prompt_with(DOCUMENT, 5), "same")
    rig.step()
    assert (first.cached_tokens > 350, second.cached_tokens) == (True, 0)
    for request in (first, second):
        check(rig, request)
    rig.finish(second)
    assert rig.is_approximate(first), "the second's end took the first's mark away"
    rig.finish(first)
    assert len(rig.exact_match(list(first.origin_input_ids), TreeKey(None))) == 80
    rig.check_accounts()
    assert len(rig.side.requests) == 0


def test_requests_that_vanish_are_forgotten(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    lost = rig.submit(prompt_with(DOCUMENT, 3), "lost")
    lost.init_next_round_input(rig.tree)
    rig.waiting.remove(lost)
    monkeypatch.setattr(requests, "FORGOTTEN_AFTER_S", -1.0)
    rig.serve(passage(8, 50), "next")
    assert len(rig.side.requests) == 0
    assert rig.side.provider.stats().declines[DeclineReason.ABORTED] == 1


def test_what_is_refused_again_and_again_is_served_cold(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    request = rig.submit(prompt_with(DOCUMENT, 3), "asked")
    copies = 0
    for _ in range(2 * MOST_POSTPONEMENTS):
        request.init_next_round_input(rig.tree)
        life = rig.side.claimed(request)
        if life is not None:
            copies += rig.side.admit(life) is not None
            rig.side.withdraw(life)
        rig.check_accounts()
    assert copies == MOST_POSTPONEMENTS + 1
    assert rig.side.provider.stats().declines[DeclineReason.ALLOCATION_FAILED] == 1
    rig.step()
    assert request.cached_tokens == 0
    check(rig, request)


def _raises(*arguments: Any) -> Any:
    raise RuntimeError("a provider's bug")


@pytest.mark.parametrize("broken", [("report_outcome",), ("stats",), ("forget_donor",), ("report_outcome", "lookup")])
def test_a_provider_that_raises_takes_nothing_down(rig: Any, broken: tuple[str, ...]) -> None:
    provider = rig.side.provider
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    rig.side.on_change = lambda: provider.stats()
    for name in broken:
        setattr(provider, name, _raises)
    request = rig.submit(prompt_with(DOCUMENT, 3), "asked")
    rig.step()
    check(rig, request)
    assert (request.cached_tokens > 350) == ("lookup" not in broken)
    rig.finish(request)
    aborted = rig.submit(prompt_with(DOCUMENT, 5), "aborted")
    aborted.init_next_round_input(rig.tree)
    rig.abort(aborted)
    declined = rig.submit(prompt_with(DOCUMENT, 5), "declined")
    declined.return_hidden_states = True
    rig.step()
    rig.finish(declined)
    rig.tree.reset()
    assert len(rig.side.requests) == 0
    rig.side.close()


def test_a_forward_that_never_asks_for_rows_ends_reuse(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    start, rig.side.landing.start = rig.side.landing.start, lambda request: None
    broken = rig.submit(prompt_with(DOCUMENT, 3), "asked")
    rig.step()
    rig.finish(broken)
    rig.side.landing.start = start
    words = passage(8, 40)
    rig.serve([words[n * 7 % 40] for n in range(300)], "would pass the self-test")
    assert rig.serve(prompt_with(DOCUMENT, 5), "asked again").cached_tokens == 0
    assert rig.side.provider.stats().confirmed_tokens == 0
    rig.check_accounts()


@pytest.mark.parametrize("shown", ["exact", "rounded", "left_out"])
def test_a_batch_that_cannot_be_made_with_rows_is_computed_and_ends_reuse(
    new_rig: Callable[..., Any], shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = new_rig(lookup_budget_ms=600_000.0, cached_tokens=shown)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    asked = [rig.submit(prompt_with(DOCUMENT, seed), f"asked-{seed}") for seed in (3, 5)]
    plain = rig.submit(passage(7, 50), "plain")
    rig.of_batch = {"orig_seq_lens": None}  # As if SGLang had changed a field of its batches.
    rig.step()
    rig.of_batch = {}
    for request in (*asked, plain):
        slots = rig.slots_of(request)
        assert rig.numbers_at(slots) == exact_numbers(request.origin_input_ids), "some of it was not computed"
        assert request.cached_tokens == 0
        rig.finish(request)
    assert rig.side.provider.stats().declines[DeclineReason.INTERNAL_ERROR] == 2
    assert "its prompts are computed" in next(r.message for r in caplog.records if r.levelname == "ERROR")
    rig.check_accounts()
    assert len(rig.side.requests) == 0
    again = rig.serve(prompt_with(DOCUMENT, 9), "again")
    assert again.cached_tokens == 0
    assert rig.side.provider.stats().outcomes[OutcomeKind.DISCOVERY_ONLY] == 1


def test_a_plan_for_other_tokens_is_not_used(rig: Any) -> None:
    provider = rig.side.provider
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    lookup = provider.lookup

    def shifted(request: Any) -> Any:
        result = lookup(request)
        plan = result.plan
        spans = tuple(replace(span, donor_start=span.donor_start - 1) for span in plan.spans)
        return replace(result, plan=replace(plan, spans=spans))

    provider.lookup = shifted
    request = rig.submit(prompt_with(DOCUMENT, 3), "asked")
    rig.step()
    assert request.cached_tokens == 0
    assert provider.stats().declines[DeclineReason.INTERNAL_ERROR] == 1
    check(rig, request)


@pytest.mark.parametrize(
    ("field", "value"), [("session_id", "s"), ("positional_embed_overrides", object()), ("return_hidden_states", True)]
)
def test_what_is_not_supported_is_no_donor_either(rig: Any, field: str, value: Any) -> None:
    request = rig.submit(prompt_with(DOCUMENT, 3), "asked")
    setattr(request, field, value)
    rig.step()
    assert len(rig.side.donors) == 0
    assert outcomes(rig) == {OutcomeKind.DECLINED: 1}
