"""Under whose name a request is kept, and what is put back behind it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from semblend_core import donor_id_of
from semblend_sglang.requests import FollowedRequest, NamespaceBook, TreeKey, token_ids_of

SHARED = {
    "model": "m",
    "revision": "local",
    "tokenizer": "t",
    "dtype": "bfloat16",
    "kv_layout": "sglang",
    "block_size": 1,
}


def test_namespaces_keep_salts_adapters_and_nobody_apart() -> None:
    book = NamespaceBook(SHARED)
    keys = [
        TreeKey(None),
        TreeKey("a"),
        TreeKey(None, "a"),
        TreeKey("a", "a"),
        TreeKey("", None),
        TreeKey('["a", null]'),
    ]
    assert len({book.of(key).digest for key in keys}) == len(keys)
    assert book.of(TreeKey("a", "b")).digest == NamespaceBook(SHARED).of(TreeKey("a", "b")).digest


def test_a_raw_salt_is_nowhere_in_a_namespace() -> None:
    namespace = NamespaceBook(SHARED).of(TreeKey("raw-extra", "raw-salt"))
    assert "raw" not in repr(namespace) + repr(vars(namespace))


def test_the_book_of_namespaces_is_bounded() -> None:
    book = NamespaceBook(SHARED, most=3)
    for number in range(10):
        book.of(TreeKey(None, str(number)))
    assert len(book._known) == 3


def test_the_insert_switch_is_saved_once_and_put_back() -> None:
    for before in (False, True):
        request = SimpleNamespace(skip_radix_cache_insert=before)
        namespace = NamespaceBook(SHARED).of(TreeKey(None))
        followed = FollowedRequest(request, "r", namespace, TreeKey(None), token_ids_of([1, 2]))
        followed.forbid_insert()
        followed.forbid_insert()
        assert request.skip_radix_cache_insert is True
        followed.restore_insert()
        assert request.skip_radix_cache_insert is before


def test_equal_tokens_are_one_donor() -> None:
    assert donor_id_of(token_ids_of([1, 2, 3])) == donor_id_of(token_ids_of(np.array([1, 2, 3])))
    assert donor_id_of(token_ids_of([1, 2, 3])) != donor_id_of(token_ids_of([1, 2, 4]))
