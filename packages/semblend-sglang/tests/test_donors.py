"""The book of donors is bounded, and tells what it drops."""

from __future__ import annotations

from semblend_core import Namespace
from semblend_sglang.donors import Donor, DonorBook
from semblend_sglang.requests import TreeKey, token_ids_of

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="f", kv_layout="l", block_size=1, adapter=None, salt=None
)


def test_the_least_recently_used_donor_goes_first_and_is_named() -> None:
    gone: list[Donor] = []
    book = DonorBook(2, gone.append)
    for name in ("a", "b"):
        book.add(name, NAMESPACE, TreeKey(None), token_ids_of([1, 2]))
    assert book.get(NAMESPACE, "a") is not None
    book.add("c", NAMESPACE, TreeKey(None), token_ids_of([3]))
    assert [donor.donor_id for donor in gone] == ["b"]
    assert book.get(NAMESPACE, "b") is None
    book.clear()
    assert [donor.donor_id for donor in gone] == ["b", "a", "c"]
    assert len(book) == 0
