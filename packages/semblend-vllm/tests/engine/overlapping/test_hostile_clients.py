"""What hostile clients send: vLLM's scheduler answers everybody, and what is kept of them is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from semblend_core.testing import BOUNDS_OF_BOOKS, grown, held_by, passage
from semblend_core.testing.fuzzing import few_or_many, fuzz, texts, values

DOCUMENT = passage(1, 240)
Make = Callable[..., Any]


def prompt_of(number: int) -> list[int]:
    return [*passage(1000 + number, 24), *DOCUMENT, *passage(5000 + number, 8)]


@few_or_many
def test_whatever_a_client_asks_of_semblend_it_is_answered(cases: int, new_overlapping: Make, answer: Any) -> None:
    from overlapping_engine import _new_request

    engine, seen = new_overlapping(), []
    engine.add(prompt_of(0))
    engine.finish()

    def check(parameters: Any, salt: str) -> None:
        seen.append(None)
        request = _new_request(f"request of a client {len(seen)}", prompt_of(len(seen)), 2, salt=salt or "tenant")
        request.kv_transfer_params = parameters
        engine.scheduler.add_request(request)
        engine.finish()
        assert engine.answers.pop(request.request_id) == answer(list(request.prompt_token_ids), 2)

    ours = st.fixed_dictionaries({"semblend": values | st.fixed_dictionaries({"mode": values, "capture": values})})
    fuzz(cases, check, st.none() | st.dictionaries(texts, values, max_size=4) | ours, texts)
    engine.check_nothing_is_left()


@pytest.fixture
def small_books(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every book is full soon."""
    monkeypatch.setenv("SEMBLEND_MAX_DONORS", "32")
    for bound in BOUNDS_OF_BOOKS:
        monkeypatch.setattr(bound, 32)


@pytest.mark.usefixtures("small_books")
def test_a_flood_of_salts_that_are_used_once_leaves_nothing_behind(new_overlapping: Make) -> None:
    engine = new_overlapping(blocks=2000)

    def flood(numbers: range) -> dict[str, int]:
        for number in numbers:
            for turn in range(3):
                engine.add(prompt_of(3 * number + turn), 1, salt=f"salt {number}")
                engine.finish()
        engine.requests.clear()
        return dict(held_by(engine.side))

    # Donors fill their 32 places first; those that lose theirs fill the ledger of regrets.
    before, after = flood(range(70)), flood(range(70, 252))
    assert grown(before, after) == {}
    assert engine.side.provider.stats().confirmed_tokens > 0, "the clients did reuse"
    engine.check_nothing_is_left()


def long_context(config: Any) -> None:
    config.model_config.max_model_len = config.scheduler_config.max_model_len = 10_000


HOSTILE = {
    "480 spans": [token for at in range(0, 7680, 16) for token in (*passage(7, 7680)[at : at + 16], 100 + at % 64)],
    "one token": [7] * 8000,
    "one period": passage(8, 33) * 240,
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_who_stands_behind_a_hostile_prompt_waits_no_more_steps_than_without_reuse(
    new_overlapping: Make, monkeypatch: pytest.MonkeyPatch, hostile: str
) -> None:
    monkeypatch.setenv("SEMBLEND_MIN_SPAN_TOKENS", "16")

    def calls(wish: str) -> int:
        engine = new_overlapping(blocks=3000, tokens_of_a_step=2048, change=long_context)
        for donor in (passage(7, 7680), HOSTILE[hostile][:4000]):
            engine.add(donor, 1)
            engine.finish()
        engine.add([*passage(9, 40), *HOSTILE[hostile]], 1, wish)
        polite = [engine.add(passage(10 + number, 60), 1) for number in range(4)]
        taken = 0
        while not all(request.is_finished() for request in polite):
            engine.step()
            taken += 1
        engine.finish()
        engine.check_nothing_is_left()
        return taken

    assert calls("on") <= calls("off") + 2
