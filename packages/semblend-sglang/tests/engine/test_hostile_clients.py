"""What hostile clients send: SGLang's scheduler serves everybody, and what is kept of them is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from semblend_core.testing import BOUNDS_OF_BOOKS, grown, held_by, passage
from semblend_core.testing.fuzzing import few_or_many, fuzz, texts, values

DOCUMENT = passage(1, 240)
LONG = "k" * 100_000


def prompt_of(number: int) -> list[int]:
    return [*passage(1000 + number, 24), *DOCUMENT, *passage(5000 + number, 8)]


@few_or_many
def test_whatever_a_client_asks_of_semblend_it_is_served(cases: int, new_rig: Callable[..., Any]) -> None:
    rig, seen = new_rig(), []
    rig.serve(prompt_of(0), "donor", salt="tenant")

    def check(parameters: Any, rid: str, salt: str | None) -> None:
        seen.append(None)
        prompt = prompt_of(len(seen))
        request = rig.submit(prompt, rid, salt=salt)
        request.sampling_params.custom_params = parameters
        for _ in range(100):
            rig.step()
            if request not in rig.waiting:
                break
        slots = rig.slots_of(request)
        assert rig.tokens_at(slots) == prompt[: len(slots)]
        rig.finish(request)

    ours = st.fixed_dictionaries({"semblend": values | st.fixed_dictionaries({"mode": values, "capture": values})})
    fuzz(cases, check, values | ours, texts, st.none() | st.just("tenant") | texts)
    rig.check_accounts()


@pytest.fixture
def small_books(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every book is full soon."""
    for bound in BOUNDS_OF_BOOKS:
        monkeypatch.setattr(bound, 32)


@pytest.mark.usefixtures("small_books")
def test_a_flood_of_salts_that_are_used_once_leaves_nothing_behind(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(max_donors=32)

    def flood(numbers: range) -> dict[str, int]:
        for number in numbers:
            for turn in range(3):
                rig.serve(prompt_of(3 * number + turn), f"{number} {turn}", salt=f"salt {number}")
        rig.evict(rig.slots)
        rig.check_accounts()
        return dict(held_by(rig.side))

    # Donors fill their 32 places first; those that lose theirs fill the ledger of regrets.
    before, after = flood(range(70)), flood(range(70, 250))
    assert grown(before, after) == {}
    assert rig.side.provider.stats().confirmed_tokens > 0, "the clients did reuse"


def test_a_client_with_an_endless_salt_neither_gives_nor_takes(new_rig: Callable[..., Any]) -> None:
    rig = new_rig()
    for turn in range(2):
        assert rig.serve(prompt_of(turn), f"turn {turn}", salt=LONG).cached_tokens == 0
    assert rig.side.provider.stats().donors == 0
    assert sum(held_by(rig.side).values()) < len(LONG)


HOSTILE = {
    "480 spans": [token for at in range(0, 15360, 32) for token in (*passage(7, 15360)[at : at + 32], 100 + at % 64)],
    "one token": [7] * 16_000,
    "one period": passage(8, 33) * 480,
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_who_stands_behind_a_hostile_prompt_waits_no_more_rounds_than_without_reuse(
    new_rig: Callable[..., Any], hostile: str
) -> None:
    def rounds(wish: str) -> int:
        rig = new_rig(context=20_000, slots=60_000)
        for number, donor in enumerate((passage(7, 15360), HOSTILE[hostile][:8000])):
            rig.serve(donor, f"donor {number}")
        attack = rig.submit([*passage(9, 40), *HOSTILE[hostile]], "attack", wish=wish)
        polite = [rig.submit(passage(10 + number, 60), f"polite {number}") for number in range(4)]
        taken = 0
        while any(request in rig.waiting for request in polite):
            rig.step()
            taken += 1
        while attack not in rig.running:
            rig.step()
        slots = rig.slots_of(attack)
        assert rig.tokens_at(slots) == list(attack.origin_input_ids)[: len(slots)]
        for request in (attack, *polite):
            rig.finish(request)
        rig.check_accounts()
        return taken

    assert rounds("on") <= rounds("off") + 1
