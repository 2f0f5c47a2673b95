"""An opening is hot when enough requests begin anew with it; a conversation that goes on is one request."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from semblend_core import TokenIds
from semblend_core.serving import HotOpenings, Lineage
from semblend_core.serving.hot import MOST_WAITING

LINEAGE = Lineage(b"name", "namespace", 0, b"")


def tokens(seed: int, length: int) -> TokenIds:
    ids = np.random.default_rng(seed).integers(0, 50_000, length).astype(np.int32)
    ids.flags.writeable = False
    return ids


OPENING = tokens(0, 320)


def asked(hot: HotOpenings[str], questions: range, shared: int = 320, lineage: Lineage = LINEAGE) -> None:
    for number in questions:
        hot.note([lineage], np.concatenate([OPENING, tokens(number, 30)]), 0 if number == 1 else shared, "note")


@pytest.mark.parametrize("after", [2, 3, 5])
def test_the_how_maniest_that_asks_makes_it_hot(after: int) -> None:
    hot: HotOpenings[str] = HotOpenings(after)
    asked(hot, range(1, after))
    assert hot.next() is None
    asked(hot, range(after, after + 1))
    opening = hot.next()
    assert opening is not None
    assert opening.token_ids.tolist() == OPENING.tolist()
    assert opening.note == "note"
    hot.done(opening)
    asked(hot, range(after + 1, 3 * after))
    assert hot.next() is None, "once is enough"


def test_what_is_asked_for_again_is_not_exact_any_more() -> None:
    """Or never became so. It is tried again, ever more rarely."""
    hot: HotOpenings[str] = HotOpenings(3)
    tries = []
    for number in range(1, 200):
        asked(hot, range(number, number + 1))
        opening = hot.next()
        if opening is not None:
            assert opening.token_ids.tolist() == OPENING.tolist()
            hot.done(opening)
            tries.append(number)
    assert tries == [3, 9, 21, 45, 93, 189]


def test_what_waits_is_wanted_once() -> None:
    hot: HotOpenings[str] = HotOpenings(3)
    asked(hot, range(1, 4), lineage=Lineage(b"other", "namespace", 0, b""))
    asked(hot, range(1, 5000))
    first = hot.next()
    assert first is not None
    hot.done(first)
    second = hot.next()
    assert second is not None
    hot.done(second)
    assert hot.next() is None
    assert {first.lineage, second.lineage} == {b"other", b"name"}


def test_an_opening_that_many_ask_for_takes_no_more_room() -> None:
    hot: HotOpenings[str] = HotOpenings(3)
    sizes = []
    for number in range(1, 600):
        asked(hot, range(number, number + 1))
        sizes.append(len(pickle.dumps(hot)))
    assert max(sizes) < sizes[100] + 200


def test_it_is_as_long_as_all_of_them_agree() -> None:
    hot: HotOpenings[str] = HotOpenings(3)
    asked(hot, range(1, 3))
    asked(hot, range(3, 4), shared=160)
    opening = hot.next()
    assert opening is not None
    assert opening.token_ids.size == 160


def test_a_conversation_that_goes_on_asks_for_nothing_new() -> None:
    hot: HotOpenings[str] = HotOpenings(3)
    prompt = np.concatenate([OPENING, tokens(1, 30)])
    for turn in range(10):
        hot.note([LINEAGE], prompt, 0 if not turn else prompt.size // 16 * 16, "note")
        prompt = np.concatenate([prompt, tokens(100 + turn, 40)])
    assert hot.next() is None


def test_never() -> None:
    hot: HotOpenings[str] = HotOpenings(None)
    asked(hot, range(1, 20))
    assert hot.next() is None


def test_with_many_waiting_the_oldest_are_let_go() -> None:
    hot: HotOpenings[str] = HotOpenings(2)
    for number in range(MOST_WAITING + 5):
        asked(hot, range(1, 3), lineage=Lineage(bytes([number]), "namespace", 0, b""))
    waiting = 0
    while (opening := hot.next()) is not None:
        hot.done(opening)
        waiting += 1
    assert waiting == MOST_WAITING
    hot.clear()
    assert hot.next() is None
