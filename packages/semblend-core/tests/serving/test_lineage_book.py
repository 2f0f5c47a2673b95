"""A lineage is found by who has its very tokens in front of it, in its namespace, once its bytes have landed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from semblend_core import Namespace, Span, TokenIds
from semblend_core.serving import Claim, Lineage, LineageBook
from semblend_core.serving.lineage import MOST_LINEAGES


def namespace(salt: str | None = None) -> Namespace:
    return Namespace(
        model="m", revision="r", tokenizer="t", dtype="f", kv_layout="l", block_size=16, adapter=None, salt=salt
    )


def prompt(seed: int, tokens: int = 200) -> TokenIds:
    ids = np.random.default_rng(seed).integers(0, 50_000, tokens).astype(np.int32)
    ids.flags.writeable = False
    return ids


def claim(start: int = 0, donor: str = "d") -> Claim:
    return Claim(start, 160, (Span(start + 40, donor, 0, 100),), ((start, start + 40),))


def grown(book: LineageBook, tokens: TokenIds, start: int = 32, **options: object) -> Lineage:
    lineage = book.grow(namespace(), tokens, claim(), start, **options)  # type: ignore[arg-type]
    lineage.confirmed = True
    return lineage


def test_it_is_found_behind_its_very_tokens_and_no_others() -> None:
    book, tokens = LineageBook(), prompt(1)
    lineage = grown(book, tokens)
    assert list(book.behind(namespace(), tokens, reach=32)) == [lineage]
    assert list(book.behind(namespace(), np.concatenate([tokens[:64], prompt(2)]), reach=64)) == [lineage]
    assert list(book.behind(namespace(), tokens, reach=31)) == []
    assert list(book.behind(namespace(), prompt(2), reach=64)) == []
    assert list(book.behind(namespace("another"), tokens, reach=64)) == []


def test_equal_prompts_with_equal_claims_share_one() -> None:
    book, tokens = LineageBook(), prompt(1)
    assert grown(book, tokens) is grown(book, tokens)
    other = book.grow(namespace(), tokens, claim(donor="another"), 32)
    assert other.name != grown(book, tokens).name
    assert len(book) == 2


def test_nobody_can_guess_a_name() -> None:
    names = {grown(LineageBook(), prompt(1)).name for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) == 32 for name in names)


def test_what_has_not_landed_is_not_found() -> None:
    book, tokens = LineageBook(), prompt(1)
    book.grow(namespace(), tokens, claim(), 32)
    assert list(book.behind(namespace(), tokens, reach=64)) == []


def test_a_name_whose_kv_never_came_is_not_given_again() -> None:
    book, tokens = LineageBook(), prompt(1)
    spoiled = grown(book, tokens)
    book.spoil(spoiled)
    assert list(book.behind(namespace(), tokens, reach=64)) == []
    assert grown(book, tokens).name != spoiled.name


def test_what_grew_from_a_lineage_is_found_behind_it_and_goes_with_it() -> None:
    book, tokens = LineageBook(), prompt(1)
    parent = grown(book, tokens)
    child = grown(book, tokens, start=160, parent=parent)
    assert list(book.behind(namespace(), tokens, reach=200)) == [parent]
    assert list(book.behind(namespace(), tokens, reach=200, parent=parent)) == [child]
    book.forget(parent)
    assert len(book) == 0


def test_the_least_recently_used_are_forgotten() -> None:
    book = LineageBook()
    first = grown(book, prompt(0))
    for seed in range(1, MOST_LINEAGES):
        grown(book, prompt(seed))
    book.use(first)
    grown(book, prompt(MOST_LINEAGES))
    assert len(book) == MOST_LINEAGES
    assert list(book.behind(namespace(), prompt(0), reach=64)) == [first]
    assert list(book.behind(namespace(), prompt(1), reach=64)) == []


def test_new_weights_end_all_of_them() -> None:
    book, tokens = LineageBook(), prompt(1)
    before = grown(book, tokens).name
    book.clear()
    assert list(book.behind(namespace(), tokens, reach=64)) == []
    assert grown(book, tokens).name != before


def test_one_that_has_grown_again_is_not_forgotten_with_its_forerunner() -> None:
    book, tokens = LineageBook(), prompt(1)
    parent = grown(book, tokens)
    first = grown(book, tokens, 112, parent=parent)
    book.forget(parent)
    again = grown(book, tokens, 112, parent=grown(book, tokens))
    assert again is not first
    assert again.name == first.name
    book.forget(first)
    book.forget(parent)
    assert list(book.behind(namespace(), tokens, reach=160, parent=again.parent)) == [again]


def test_a_request_looks_at_those_that_go_on_as_it_does() -> None:
    """However many begin behind one system prompt."""
    book, system = LineageBook(), prompt(0, 32)
    prompts = [np.concatenate([system, prompt(seed)]) for seed in range(1, 100)]
    lineages = [grown(book, tokens) for tokens in prompts]
    for tokens, lineage in zip(prompts, lineages, strict=True):
        assert list(book.behind(namespace(), tokens, reach=200)) == [lineage]


def test_of_a_namespace_whose_lineages_are_forgotten_nothing_is_left() -> None:
    book = LineageBook()
    for salt in range(20):
        book.forget(book.grow(namespace(str(salt)), prompt(1), claim(), 32))
    assert not book._roots


def test_a_lineage_is_as_good_as_the_worst_it_is_behind() -> None:
    book, tokens = LineageBook(), prompt(1)
    parent = book.grow(namespace(), tokens, replace(claim(), spending=2.0), 32)
    assert (parent.places, parent.spending) == (1, 2.0)
    three = replace(claim(), spans=tuple(Span(40 + 30 * at, f"d{at}", 0, 30) for at in range(3)), spending=4.0)
    child = book.grow(namespace(), tokens, three, 160, parent)
    assert (child.places, child.spending) == (3, 4.0), "one place was made with its own, and is judged apart"
    behind_less = book.grow(namespace(), tokens, replace(three, spending=8.0), 170, child)
    assert (behind_less.places, behind_less.spending) == (3, 4.0)
    one = book.grow(namespace(), tokens, replace(claim(), spending=1.0), 176, child)
    assert (one.places, one.spending) == (3, 4.0)


def test_what_is_not_trusted_is_not_found() -> None:
    trusted: set[float] = {1.0}
    book, tokens = LineageBook(trusts=lambda lineage: lineage.spending in trusted), prompt(1)
    lineage = grown(book, tokens)
    assert list(book.behind(namespace(), tokens, reach=64)) == [lineage]
    trusted.clear()
    assert list(book.behind(namespace(), tokens, reach=64)) == []
    trusted.add(1.0)
    assert list(book.behind(namespace(), tokens, reach=64)) == [lineage]
