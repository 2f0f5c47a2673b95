"""Who shares with whom, and what a client can tell of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semblend_core import DeclineReason
from semblend_core.testing import passage

DOCUMENT = passage(2, 717)


def ask(rig: Any, seed: int, **who: Any) -> Any:
    return rig.serve([*passage(seed, 48), *DOCUMENT, *passage(seed + 100, 24)], f"asked-{seed}", **who)


def test_without_a_salt_nothing_is_given_or_taken_unless_all_share(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(sharing="salted", lookup_budget_ms=600_000.0)
    for seed in (3, 4, 5):
        assert ask(rig, seed).cached_tokens == 0
    ask(rig, 6, adapter="lora")
    stats = rig.side.provider.stats()
    assert (stats.donors, stats.confirmed_tokens, stats.lookups) == (0, 0, 0)
    assert stats.declines == {DeclineReason.NO_SALT: 4}
    ask(rig, 7, salt="tenant")
    assert ask(rig, 8, salt="tenant").cached_tokens > 600
    rig.check_accounts()


@pytest.mark.parametrize("setting", ["rounded", "left_out", "exact"])
def test_a_client_sees_of_relocated_tokens_what_the_setting_says(new_rig: Callable[..., Any], setting: str) -> None:
    rig = new_rig(cached_tokens=setting, lookup_budget_ms=600_000.0)
    ask(rig, 3, salt="tenant")
    asked = ask(rig, 4, salt="tenant")
    reused = rig.side.provider.stats().confirmed_tokens
    assert reused > 600
    assert reused % 64
    assert asked.cached_tokens == {"rounded": reused - reused % 64, "left_out": 0, "exact": reused}[setting]


@pytest.mark.parametrize("setting", ["rounded", "left_out", "exact"])
def test_a_client_sees_nothing_of_relocated_tokens_that_were_computed_after_all(
    new_rig: Callable[..., Any], setting: str
) -> None:
    rig = new_rig(cached_tokens=setting, lookup_budget_ms=600_000.0, quality_tier="balanced")
    ask(rig, 3, salt="tenant")
    rig.of_batch = {"orig_seq_lens": None}  # No batch can be made with rows.
    asked = ask(rig, 4, salt="tenant")
    assert rig.side.provider.stats().declines[DeclineReason.INTERNAL_ERROR] == 1
    assert asked.cached_tokens == 0


def test_a_client_cannot_make_its_prompt_a_donor_where_the_operator_keeps_none(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(capture="sampled", capture_share=0.0)
    ask(rig, 3, salt="tenant", wish={"mode": "on", "capture": True})
    assert rig.side.provider.stats().donors == 0
