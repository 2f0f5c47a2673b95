"""Donors of an engine that evicts without a word: no more are known than it can hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from semblend_core import LookupRequest, Namespace, Outcome, OutcomeKind, Settings, TokenIds, create_provider
from semblend_core.serving import Donor, DonorBook

HERE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="f", kv_layout="l", block_size=16, adapter=None, salt="a"
)


class Book:
    def __init__(self, most_tokens: int | None) -> None:
        self.gone: list[str] = []
        self.provider = create_provider(Settings(min_span_tokens=16), engine="test")
        self.book: DonorBook[None] = DonorBook(
            self.provider, 1000, lambda donor: self.gone.append(donor.donor_id), most_tokens=most_tokens
        )

    def take(self, tokens: TokenIds) -> Donor[None]:
        donor = self.book.offer(HERE, tokens, None)
        assert donor is not None
        self.book.replace_prefixes(donor, tokens)
        return donor

    def has(self, donor: Donor[None]) -> bool:
        return donor.name in self.book


def texts(tokens: int, seed: int = 1) -> Iterator[TokenIds]:
    chance = np.random.default_rng(seed)
    while True:
        yield _frozen(chance.integers(0, 50_000, tokens))


def _frozen(tokens: np.ndarray) -> TokenIds:
    ids = tokens.astype(np.int32)
    ids.flags.writeable = False
    return ids


def test_those_used_least_recently_go_when_there_are_more_tokens_than_the_engine_holds() -> None:
    book, text = Book(1000), texts(320)
    first, second, third = (book.take(next(text)) for _ in range(3))
    assert not book.gone
    assert book.book.get(HERE, first.donor_id) is first, "which is a use"
    fourth = book.take(next(text))
    assert book.gone == [second.donor_id]
    assert all(map(book.has, (first, third, fourth)))


@pytest.mark.parametrize("most_tokens", [2000, None])
def test_however_many_come_they_stay_few_where_there_is_a_limit(most_tokens: int | None) -> None:
    book, text = Book(most_tokens), texts(160)
    for _ in range(100):
        book.take(next(text))
    assert len(book.book) == (100 if most_tokens is None else most_tokens // 160)


def test_a_long_one_does_not_hold_the_scheduler_up_until_all_short_ones_are_forgotten() -> None:
    book, text = Book(6400), texts(64)
    short = [book.take(next(text)) for _ in range(100)]
    long = book.take(next(texts(6400, seed=2)))
    assert len(book.gone) == 16
    for _ in range(6):
        last = book.take(next(text))
    assert not any(map(book.has, short))
    assert book.has(last)
    assert not book.has(long), "and one that is as long as all the room goes in its turn"


def test_a_beginning_that_all_share_counts_once() -> None:
    book, text = Book(1000), texts(48)
    opening = next(texts(640, seed=2))
    donors = [book.take(_frozen(np.concatenate([opening, next(text)]))) for _ in range(7)]
    assert all(map(book.has, donors)), "640 tokens, and 48 for each"
    last = book.take(_frozen(np.concatenate([opening, next(text)])))
    assert book.gone == [donors[0].donor_id]
    assert book.has(last)


def test_a_conversation_counts_as_its_last_turn() -> None:
    book, text = Book(1000), texts(80)
    other = book.take(next(texts(160, seed=3)))
    turns = np.empty(0, np.int32)
    for number in range(10):
        turns = np.concatenate([turns, next(text)])
        donor = book.take(_frozen(turns))
        assert len(book.book) == 2 or number < 1
        assert book.has(donor)
    assert book.has(other), "960 tokens are no more than 1,000"
    book.take(_frozen(np.concatenate([turns, next(text)])))
    assert not book.has(other), "1,040 are"


def test_turns_of_any_length_count_once() -> None:
    book, text = Book(1000), texts(21)
    other, turns = book.take(next(texts(160, seed=3))), np.empty(0, np.int32)
    for _ in range(39):
        turns = np.concatenate([turns, next(text)])
        book.take(_frozen(turns))
    assert book.has(other), "979 tokens are no more than 1,000, in however many turns they came"


def test_a_beginning_counts_as_long_as_anybody_has_it() -> None:
    book, text = Book(1000), texts(48)
    openings = [next(texts(400, seed=seed)) for seed in (2, 3, 4)]
    for _ in range(20):
        for opening in openings[:2]:
            last = book.take(_frozen(np.concatenate([opening, next(text)])))
    assert len(book.book) == 4, "800 tokens, and 48 for each"
    third = book.take(_frozen(np.concatenate([openings[2], next(text)])))
    assert set(book.book._donors) == {last.name, third.name}, "three openings are more than 1,000"


def test_a_donor_outlives_the_longer_one_that_was_to_replace_it() -> None:
    book, text = Book(None), texts(320)
    tokens = next(text)
    shorter = book.take(tokens)
    assert book.provider.lookup(LookupRequest("r", HERE, tokens, 0)).plan is not None, "which pins it"
    longer = book.take(_frozen(np.concatenate([tokens, next(text)])))
    assert book.has(shorter)
    book.book.drop(longer.name)
    book.provider.report_outcome(Outcome("r", OutcomeKind.COLD))
    book.take(next(text))
    assert book.has(shorter), "nobody else holds it"


def test_a_donor_that_a_plan_needed_goes_when_it_does_not_and_a_longer_one_is_there() -> None:
    book, text = Book(None), texts(320)
    tokens = next(text)
    shorter = book.take(tokens)
    book.provider.lookup(LookupRequest("r", HERE, tokens, 0))
    longer = book.take(_frozen(np.concatenate([tokens, next(text)])))
    book.provider.report_outcome(Outcome("r", OutcomeKind.COLD))
    book.take(next(text))
    assert not book.has(shorter)
    assert book.has(longer)


def test_who_has_left_counts_no_more() -> None:
    book, text = Book(1000), texts(320)
    for _ in range(20):
        book.book.drop(book.take(next(text)).name)
    book.book.forget_tenant(HERE.salt_digest)
    kept = [book.take(next(text)) for _ in range(3)]
    book.book.forget_tenant(HERE.salt_digest)
    again = [book.take(next(text)) for _ in range(3)]
    assert not any(map(book.has, kept))
    assert all(map(book.has, again))
