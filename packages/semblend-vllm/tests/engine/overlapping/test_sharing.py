"""Who shares with whom, and what a client can tell of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semblend_core import DeclineReason
from semblend_core.testing import passage

DOCUMENT = passage(2, 717)


@pytest.fixture
def engine_with(new_overlapping: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def make(change: Callable[[Any], object] = lambda config: None, **settings: str) -> Any:
        for name, value in settings.items():
            monkeypatch.setenv(f"SEMBLEND_{name.upper()}", value)
        return new_overlapping(tokens_of_a_step=1024, change=change)

    return make


def ask(engine: Any, seed: int, salt: Any = None, wish: Any = "on") -> Any:
    request = engine.add([*passage(seed, 48), *DOCUMENT, *passage(seed + 100, 24)], 1, wish, salt)
    engine.finish()
    return request


def test_without_a_salt_nothing_is_given_or_taken_unless_all_share(engine_with: Callable[..., Any]) -> None:
    engine = engine_with(sharing="salted")
    for seed in (3, 4, 5):
        ask(engine, seed)
    stats = engine.side.provider.stats()
    assert (stats.donors, stats.confirmed_tokens, stats.lookups) == (0, 0, 0)
    assert stats.declines == {DeclineReason.NO_SALT: 3}
    ask(engine, 6, "tenant")
    ask(engine, 7, "tenant")
    assert engine.side.provider.stats().confirmed_tokens > 600
    engine.check_nothing_is_left()


def test_where_all_share_a_salt_is_not_needed(engine_with: Callable[..., Any]) -> None:
    engine = engine_with(sharing="all")
    ask(engine, 3)
    ask(engine, 4)
    assert engine.side.provider.stats().confirmed_tokens > 600


@pytest.mark.parametrize("setting", ["rounded", "left_out", "exact"])
def test_a_client_sees_of_relocated_tokens_what_the_setting_says(engine_with: Callable[..., Any], setting: str) -> None:
    engine = engine_with(cached_tokens=setting)
    ask(engine, 3, "tenant")
    asked = ask(engine, 4, "tenant")
    reused = engine.side.provider.stats().confirmed_tokens
    assert reused > 600
    assert reused % 64
    shown = engine.shown_as_cached[asked.request_id]
    assert shown == {"rounded": reused - reused % 64, "left_out": 0, "exact": reused}[setting]


@pytest.mark.parametrize("setting", ["rounded", "left_out", "exact"])
def test_the_same_holds_where_vllms_own_scheduler_is_in_charge(engine_with: Callable[..., Any], setting: str) -> None:
    def without_ours(config: Any) -> None:
        config.scheduler_config.scheduler_cls = None

    engine = engine_with(without_ours, cached_tokens=setting)
    if engine.side is None:
        pytest.skip("this vLLM needs our scheduler")
    ask(engine, 3, "tenant")
    asked = engine.add([*DOCUMENT[40:], *passage(9, 24)], 1, "on", "tenant")
    engine.finish()
    reused = engine.side.provider.stats().confirmed_tokens
    assert reused > 600
    assert reused % 64
    shown = engine.shown_as_cached[asked.request_id]
    assert shown == {"rounded": reused - reused % 64, "left_out": 0, "exact": reused}[setting]


def test_a_client_cannot_make_its_prompt_a_donor_where_the_operator_keeps_none(
    engine_with: Callable[..., Any],
) -> None:
    engine = engine_with(capture="sampled", capture_share="0")
    ask(engine, 3, "tenant", {"mode": "on", "capture": True})
    assert engine.side.provider.stats().donors == 0


def test_who_waited_through_a_purge_leaves_nothing(new_overlapping: Callable[..., Any]) -> None:
    """Also those so far back in the queue that nobody has looked at them yet."""
    engine = new_overlapping(places=1)
    asked = [engine.add([*passage(seed, 48), *passage(seed + 50, 200)], 1) for seed in range(20)]
    engine.step()
    engine.side.purge("tenant")
    engine.finish()
    assert len(engine.answers) == len(asked)
    assert engine.side.held_by("tenant").nothing
    engine.add([*passage(90, 48), *passage(91, 200)], 1)
    engine.finish()
    assert engine.side.held_by("tenant").donors == 1
    engine.check_nothing_is_left()
