"""An opening that many ask for becomes exact while nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from toy_model import exact_numbers

from semblend_core.testing import passage
from semblend_sglang.scheduler.background import PIECE_TOKENS
from semblend_sglang.scheduler.requests import TreeKey

DOCUMENT = passage(2, 2400)
OPENING = [*passage(3, 80), *DOCUMENT]
NOBODYS = TreeKey(None)
LAYOUTS = [
    pytest.param({"page_size": page, "core": core}, id=f"page-{page}-{core}")
    for page, core in ((1, "python"), (16, "rust"))
]


@pytest.fixture(params=LAYOUTS)
def rig(request: pytest.FixtureRequest, new_rig: Callable[..., Any]) -> Any:
    return with_donor(new_rig, **request.param)


def with_donor(new_rig: Callable[..., Any], **options: Any) -> Any:
    rig = new_rig(slots=32768, lookup_budget_ms=600_000.0, **options)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    return rig


def ask(rig: Any, number: int, **options: Any) -> Any:
    return rig.serve([*OPENING, *passage(100 + number, 40)], f"asks-{number}", **options)


def be_idle(rig: Any, rounds: int = 100) -> int:
    """What SGLang's idle scheduler does with the pieces; how many there were."""
    pieces = 0
    for _ in range(rounds):
        piece = rig.side.background.next_piece()
        if piece is not None:
            tokens, asker = piece.order.token_ids.tolist(), piece.order.asker
            rig.serve(tokens, f"piece-{pieces}", wish="off", salt=asker.key.cache_salt, adapter=asker.adapter)
            rig.side.background.computed(piece)
            pieces += 1
    return pieces


def exact_tokens(rig: Any, key: TreeKey = NOBODYS) -> int:
    return len(rig.exact_match(OPENING, key))


def settled(rig: Any) -> None:
    assert not rig.side.background.has_work
    rig.check_accounts()
    rig.check_lineages()


def test_the_third_that_asks_makes_an_opening_exact(rig: Any) -> None:
    for number in range(3):
        assert be_idle(rig) == 0
        ask(rig, number)
    assert exact_tokens(rig) < 100
    assert be_idle(rig) == 3, "no piece is longer than another request may wait"
    whole = len(OPENING) // rig.page_size * rig.page_size
    assert exact_tokens(rig) == whole
    assert rig.numbers_at(rig.exact_match(OPENING, NOBODYS)) == exact_numbers(OPENING[:whole])
    assert rig.side.provider.stats().background_tokens > 2 * PIECE_TOKENS
    assert ask(rig, 4, wish="off").cached_tokens >= whole
    settled(rig)


def test_a_conversation_that_goes_on_makes_nothing_exact(rig: Any) -> None:
    prompt = [*OPENING, *passage(5, 40)]
    for turn in range(6):
        rig.serve(prompt, f"turn-{turn}")
        prompt = [*prompt, *passage(60 + turn, 90)]
    settled(rig)
    assert rig.side.provider.stats().background_tokens == 0


def test_whoever_comes_between_two_pieces_is_served_and_the_rest_is_made_exact_later(rig: Any) -> None:
    for number in range(3):
        ask(rig, number)
    assert be_idle(rig, rounds=1) == 1
    begun = exact_tokens(rig)
    assert 0 < begun < len(OPENING) - PIECE_TOKENS
    meanwhile = ask(rig, 3)
    assert meanwhile.cached_tokens > begun, "it goes on from what lies behind what is exact by now"
    assert be_idle(rig) == 2
    settled(rig)
    assert exact_tokens(rig) >= len(OPENING) - rig.page_size


@pytest.mark.parametrize("who", [{"salt": "a"}, {"adapter": "lora"}], ids=["salt", "adapter"])
def test_it_is_exact_for_those_who_asked_and_for_nobody_else(rig: Any, who: dict[str, str]) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "their donor", **who)
    for number in range(3):
        ask(rig, number, **who)
    be_idle(rig)
    assert exact_tokens(rig, TreeKey(who.get("adapter"), who.get("salt"))) >= len(OPENING) - rig.page_size
    assert exact_tokens(rig) == 0
    settled(rig)


@pytest.mark.parametrize("change", ["flush", "update"])
def test_new_weights_end_it(rig: Any, change: str) -> None:
    for number in range(3):
        ask(rig, number)
    be_idle(rig, rounds=1)
    if change == "flush":
        rig.tree.reset()
        rig.allocator.clear()
    else:
        rig.update_weights()
    assert be_idle(rig) == 0
    settled(rig)


def test_an_opening_that_does_not_become_exact_is_given_up(rig: Any) -> None:
    for number in range(3):
        ask(rig, number)
    piece = rig.side.background.next_piece()
    rig.side.background.computed(piece)  # SGLang had no room for it.
    settled(rig)


def test_it_can_be_switched_off(new_rig: Callable[..., Any]) -> None:
    rig = with_donor(new_rig, exact_after=None)
    for number in range(6):
        ask(rig, number)
    settled(rig)
