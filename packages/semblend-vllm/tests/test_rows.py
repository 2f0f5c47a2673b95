"""Room for rows: what a step can hold, and when it is not worth keeping."""

from __future__ import annotations

from semblend_core import Span
from semblend_core.serving import Claim
from semblend_vllm.scheduler.rows import LONGEST_PAUSE, InVain, RowRoom


def claim(*rows: tuple[int, int]) -> Claim:
    return Claim(0, 160, (Span(0, "d", 5, 160),), rows)


def test_rows_take_what_was_set_aside() -> None:
    room = RowRoom(1000, 16, tokens=50, sequences=2)
    assert room.take(claim((0, 30), (60, 70)))
    assert not room.take(claim((0, 5)))
    assert (room.tokens, room.sequences) == (10, 0)


def test_a_request_holds_its_place_little_longer_than_without_reuse() -> None:
    assert RowRoom(1000, 8, held_sequences=lambda: 7).most_rows_over_steps(700) == 1
    assert RowRoom(1000, 8, held_sequences=lambda: 7).most_rows_over_steps(2500) == 2
    assert RowRoom(1000, 64, held_sequences=lambda: 64).most_rows_over_steps(700) == 5
    assert RowRoom(1000, 64, held_sequences=lambda: 60).most_rows_over_steps(700) == 20


def test_rows_that_a_probe_chooses_make_no_more_steps_unless_others_make_them_anyway() -> None:
    assert RowRoom(8192, 64).most_chosen_rows(6000) == 63
    assert RowRoom(8192, 64, held_sequences=lambda: 20).most_chosen_rows(6000) == 43
    assert RowRoom(8192, 64, held_sequences=lambda: 60).most_chosen_rows(6000) == 20, "others decode meanwhile"
    assert RowRoom(8192, 64).most_chosen_rows(32_000) == 3 * 63, "a cold prefill takes four steps"
    assert RowRoom(8192, 1).most_chosen_rows(6000) == 1


def test_long_prompts_get_fewer_rows() -> None:
    assert RowRoom.most_rows_of(200_000) < 16 < 60 < RowRoom.most_rows_of(32_000)


def kept_in(in_vain: InVain, steps: int, admitted: bool = False) -> list[bool]:
    kept = []
    for _ in range(steps):
        kept.append(not in_vain.skip())
        in_vain.note(kept[-1], admitted and kept[-1])
    return kept


def test_room_that_nobody_takes_is_kept_ever_more_rarely() -> None:
    in_vain = InVain()
    kept = kept_in(in_vain, 200)
    assert kept[0]
    assert 200 / (LONGEST_PAUSE + 1) <= sum(kept) < 30


def test_room_that_is_taken_is_always_kept() -> None:
    in_vain = InVain()
    kept_in(in_vain, 50)
    assert all(kept_in(in_vain, 50, admitted=True)[LONGEST_PAUSE + 1 :])
