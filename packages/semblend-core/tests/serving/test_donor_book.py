"""Donors of an engine that evicts without a word: no more are known than it can hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from semblend_core import Namespace, Settings, TokenIds, create_provider
from semblend_core.serving import Donor, DonorBook

HERE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="f", kv_layout="l", block_size=16, adapter=None, salt="a"
)


class Book:
    def __init__(self, most_tokens: int | None) -> None:
        self.gone: list[str] = []
        provider = create_provider(Settings(min_span_tokens=16), engine="test")
        self.book: DonorBook[None] = DonorBook(
            provider, 1000, lambda donor: self.gone.append(donor.donor_id), most_tokens=most_tokens
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
