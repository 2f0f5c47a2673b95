"""What an earlier process left waits for its owner, and comes a few at a time."""

from __future__ import annotations

from semblend_core import TokenIds, as_token_ids
from semblend_core.serving.earlier import EarlierDonors

TOKENS: TokenIds = as_token_ids([1, 2, 3])
BORN = 1.7e9


def test_nothing_is_offered_before_its_namespace_is_seen() -> None:
    earlier: EarlierDonors[str] = EarlierDonors()
    earlier.found([("a", "donor", TOKENS, BORN)])
    assert earlier.seen("b", "somebody else") == []
    assert earlier.some() == []
    assert earlier.seen("a", "owner") == [("owner", "donor", TOKENS, BORN)]
    assert earlier.seen("a", "owner") == []


def test_the_last_used_come_first_and_the_others_a_few_at_a_time() -> None:
    earlier: EarlierDonors[str] = EarlierDonors()
    names = [f"donor-{number}" for number in range(EarlierDonors.AT_FIRST + EarlierDonors.AT_A_TIME + 1)]
    earlier.found(("a", name, TOKENS, BORN) for name in names)
    offered = [name for _, name, *_ in earlier.seen("a", "owner")]
    assert offered == names[::-1][: EarlierDonors.AT_FIRST]
    assert [len(earlier.some()) for _ in range(3)] == [EarlierDonors.AT_A_TIME, 1, 0]


def test_those_who_come_later_do_not_wait_for_the_others() -> None:
    earlier: EarlierDonors[str] = EarlierDonors()
    earlier.found(("a", f"donor-{number}", TOKENS, BORN) for number in range(EarlierDonors.AT_FIRST * 2))
    earlier.found([("b", "theirs", TOKENS, BORN)])
    earlier.seen("a", "first")
    assert earlier.seen("b", "second")[0] == ("second", "theirs", TOKENS, BORN)


def test_what_was_lost_before_anybody_asked_is_not_offered() -> None:
    earlier: EarlierDonors[str] = EarlierDonors()
    earlier.found(
        [
            ("a", "first", TOKENS, BORN),
            ("a", "second", TOKENS, BORN),
            ("a", "third", TOKENS, BORN),
            ("b", "first", TOKENS, BORN),
        ]
    )
    earlier.discard(("a", "second"))
    assert [name for _, name, *_ in earlier.seen("a", "owner")] == ["third", "first"]
    assert [name for _, name, *_ in earlier.seen("b", "other")] == ["first"]


def test_what_is_cleared_is_gone() -> None:
    earlier: EarlierDonors[str] = EarlierDonors()
    earlier.found(("a", f"donor-{number}", TOKENS, BORN) for number in range(EarlierDonors.AT_FIRST * 2))
    earlier.found([("b", "theirs", TOKENS, BORN)])
    earlier.seen("a", "owner")
    earlier.clear()
    assert earlier.some() == []
    assert earlier.seen("b", "other") == []
