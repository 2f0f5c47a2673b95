"""A request goes from stage to stage as the table says, and its outcome is reported once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core import DeclineReason, Namespace, Outcome, OutcomeKind, Span
from semblend_core.serving import Claim, Finding, RequestBook, RequestLife, Stage, Wish, token_ids_of
from semblend_core.serving.life import TRANSITIONS

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="float32", kv_layout="nhd", block_size=16, adapter=None, salt="tenant"
)
CLAIM = Claim(0, 64, (Span(8, "d", 0, 56),), ((0, 8),))


class Followed:
    """One request in a book, and what was said of it."""

    def __init__(self, **fields: Any) -> None:
        self.outcomes: list[Outcome] = []
        self.given_back = 0
        self.book: RequestBook[RequestLife] = RequestBook(self.outcomes.append, self._give_back)
        self.life = RequestLife(object(), "r", NAMESPACE, list(range(100)), **fields)
        self.book.add(self.life)

    def _give_back(self, life: RequestLife) -> None:
        self.given_back += 1

    def begin_to_load(self) -> None:
        self.look_up()
        self.book.claim(self.life, CLAIM)
        self.book.load(self.life)

    def look_up(self, found: bool = True, reason: DeclineReason | None = None) -> None:
        self.life.finding = Finding(found, reason)

    @property
    def kinds(self) -> list[OutcomeKind]:
        return [outcome.kind for outcome in self.outcomes]


def test_reuse_is_reported_when_the_bytes_have_landed() -> None:
    one = Followed()
    one.look_up()
    one.book.claim(one.life, CLAIM)
    assert one.book.load(one.life) is CLAIM
    assert one.outcomes == []
    one.book.confirm(one.life, 56, 1000)
    assert one.outcomes == [Outcome("r", OutcomeKind.MATERIALIZED, confirmed_tokens=56, confirmed_bytes=1000)]
    one.book.end(one.life)
    assert (one.life.stage, len(one.book), one.given_back) == (Stage.ENDED, 0, 0)


def test_a_request_that_ends_while_it_loads_stays_until_its_load_is_confirmed() -> None:
    one = Followed()
    one.begin_to_load()
    one.book.end(one.life)
    assert one.life.stage is Stage.LEAVING
    assert one.book.get_loading("r") is one.life
    assert (one.book.get("r"), one.book.of(one.life.request, "r")) == (None, None), "another may go by its id"
    one.book.confirm(one.life, 56, 1000)
    assert one.kinds == [OutcomeKind.MATERIALIZED]
    assert (one.life.stage, len(one.book)) == (Stage.ENDED, 0)


def test_of_two_with_one_id_the_first_load_is_that_of_the_one_that_left() -> None:
    one = Followed()
    one.begin_to_load()
    one.book.end(one.life)
    another = RequestLife(object(), "r", NAMESPACE, list(range(50)))
    one.book.add(another)
    assert one.book.get("r") is another
    assert one.book.get_loading("r") is one.life
    one.book.confirm(one.life, 56, 1000)
    assert one.book.get_loading("r") is another


def test_one_whose_load_was_never_sent_is_aborted() -> None:
    one = Followed()
    one.begin_to_load()
    one.book.end(one.life, loading=False)
    assert one.outcomes == [Outcome("r", OutcomeKind.DECLINED, reason=DeclineReason.ABORTED)]
    assert len(one.book) == 0


def test_a_withdrawn_claim_is_given_back_and_may_be_made_again() -> None:
    one = Followed()
    one.look_up()
    one.life.question = (1, 0)
    one.book.claim(one.life, CLAIM)
    one.book.withdraw(one.life)
    assert (one.life.stage, one.life.claim, one.life.question, one.given_back) == (Stage.WAITING, None, None, 1)
    assert one.outcomes == []
    one.book.claim(one.life, CLAIM)
    assert one.life.stage is Stage.CLAIMED


def test_a_failed_load_is_declined_once_and_the_request_starts_over() -> None:
    one = Followed()
    one.begin_to_load()
    for _ in range(2):
        one.book.decline(one.life, DeclineReason.LOAD_FAILED)
    assert one.life.claim is CLAIM, "its memory is still the claim's"
    one.book.start_over(one.life)
    assert (one.life.claim, one.given_back) == (None, 1)
    one.book.compute(one.life)
    assert one.life.stage is Stage.COLD
    assert one.outcomes == [Outcome("r", OutcomeKind.DECLINED, reason=DeclineReason.LOAD_FAILED)]


def test_a_request_that_was_never_looked_up_has_no_outcome() -> None:
    for leave in ("cold", "aborted"):
        one = Followed(wish=Wish("off"))
        assert not one.life.is_open
        if leave == "cold":
            one.book.serve_without(one.life, Stage.COLD, None)
        one.book.end(one.life)
        assert one.outcomes == []


@pytest.mark.parametrize(
    ("found", "reason", "kind"),
    [
        (False, DeclineReason.EXACT_PREFIX_COVERS, OutcomeKind.EXACT_PREFIX),
        (False, DeclineReason.NO_DONORS, OutcomeKind.DECLINED),
        (True, None, OutcomeKind.DISCOVERY_ONLY),
    ],
)
def test_without_a_claim_the_last_lookup_says_why(found: bool, reason: DeclineReason | None, kind: OutcomeKind) -> None:
    one = Followed()
    one.look_up(found, reason)
    one.book.serve_without(one.life, Stage.COLD, DeclineReason.SELF_TEST_PENDING)
    assert one.kinds == [kind]
    assert one.outcomes[0].reason in (reason, DeclineReason.SELF_TEST_PENDING, None)


@pytest.mark.parametrize(
    ("mode", "loadable", "unproved", "reason"),
    [
        ("on", True, DeclineReason.SELF_TEST_PENDING, DeclineReason.SELF_TEST_PENDING),
        ("on", True, DeclineReason.SELF_TEST_FAILED, DeclineReason.SELF_TEST_FAILED),
        ("on", False, DeclineReason.SELF_TEST_FAILED, DeclineReason.SELF_TEST_FAILED),
        ("on", False, DeclineReason.SELF_TEST_PENDING, None),
        ("discovery", True, DeclineReason.SELF_TEST_FAILED, None),
        ("on", True, None, None),
    ],
)
def test_what_was_found_is_declined_by_the_self_test_where_it_was_to_be_loaded(
    mode: Any, loadable: bool, unproved: DeclineReason | None, reason: DeclineReason | None
) -> None:
    one = Followed(wish=Wish(mode))
    one.life.finding = Finding(True, loadable=loadable)
    one.book.serve_without(one.life, Stage.COLD, unproved)
    assert [(outcome.kind, outcome.reason) for outcome in one.outcomes] == [(OutcomeKind.DISCOVERY_ONLY, reason)]


def test_a_donor_that_went_is_the_reason_when_nothing_else_is_found() -> None:
    one = Followed()
    one.look_up(False, DeclineReason.NO_SPANS)
    one.life.lost = DeclineReason.DONOR_CORRUPT
    one.book.serve_without(one.life, Stage.DECLINED, None)
    assert one.outcomes[0].reason is DeclineReason.DONOR_CORRUPT


def test_what_cannot_be_followed_is_counted_once() -> None:
    one = Followed()
    for _ in range(3):
        one.book.refuse("x", DeclineReason.UNSUPPORTED_REQUEST)
    assert len(one.outcomes) == 1
    one.book.end_refused("x")
    one.book.refuse("x", DeclineReason.UNSUPPORTED_REQUEST)
    assert len(one.outcomes) == 2, "another request with its id"


def test_a_provider_that_fails_to_count_stops_nobody() -> None:
    def fail(outcome: Outcome) -> None:
        raise RuntimeError("out of counters")

    book: RequestBook[RequestLife] = RequestBook(fail)
    life = RequestLife(None, "r", NAMESPACE, [1, 2], finding=Finding(False))
    book.add(life)
    book.decline(life, DeclineReason.NO_SPANS)
    assert life.stage is Stage.DECLINED


STEPS: dict[str, Callable[[RequestBook[RequestLife], RequestLife], object]] = {
    "claim": lambda book, life: book.claim(life, CLAIM),
    "withdraw": lambda book, life: book.withdraw(life),
    "load": lambda book, life: book.load(life),
    "take back": lambda book, life: book.take_back(life),
    "confirm": lambda book, life: book.confirm(life, 56, 1),
    "decline": lambda book, life: book.decline(life, DeclineReason.LOAD_FAILED),
    "serve without": lambda book, life: book.serve_without(life, Stage.COLD, None),
    "compute": lambda book, life: book.compute(life),
    "start over": lambda book, life: book.start_over(life),
    "end": lambda book, life: book.end(life),
    "end unsent": lambda book, life: book.end(life, loading=False),
}
SETTLED = (Stage.DECLINED, Stage.REUSING, Stage.COLD, Stage.ENDED)


@settings(deadline=None)  # A busy machine is no fault of the code.
@given(st.lists(st.sampled_from(list(STEPS)), max_size=25))
def test_whatever_happens_one_outcome_is_reported_when_it_is_known(steps: list[str]) -> None:
    one = Followed()
    one.look_up()
    for step in steps:
        before = one.life.stage
        with suppress(AssertionError):  # What the table does not allow is refused, and changes nothing.
            STEPS[step](one.book, one.life)
        assert one.life.stage in _within_two_steps(before)
        assert len(one.outcomes) == (1 if one.life.stage in SETTLED else 0)
        if one.life.stage is Stage.ENDED:
            assert len(one.book) == 0


def _within_two_steps(stage: Stage) -> set[Stage]:
    near = {stage, *TRANSITIONS[stage]}
    return near | {after for each in near for after in TRANSITIONS[each]}


@pytest.mark.parametrize("prompt", [[1, 2, 3], np.array([1, 2, 3]), (1, 2, 3)])
def test_a_prompt_is_read_as_the_contract_wants_it(prompt: Any) -> None:
    ids = token_ids_of(prompt)
    assert ids.dtype == np.int32
    assert ids.tolist() == [1, 2, 3]
    assert not ids.flags.writeable
