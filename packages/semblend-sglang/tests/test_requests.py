"""Under whose name a request is kept, and what is put back behind it."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np

from semblend_core import Namespace, donor_id_of
from semblend_core.serving import Namespaces, token_ids_of
from semblend_sglang.scheduler.requests import SglangLife, TreeKey


def namespace_of(key: TreeKey) -> Namespace:
    shared = {"model": "m", "revision": "local", "tokenizer": "t", "dtype": "bfloat16", "kv_layout": "sglang"}
    return Namespaces(**shared, block_size=1).of(None, key.salt)


def test_namespaces_keep_salts_adapters_and_nobody_apart() -> None:
    keys = [
        TreeKey(None),
        TreeKey("a"),
        TreeKey(None, "a"),
        TreeKey("a", "a"),
        TreeKey("", None),
        TreeKey('["a", null]'),
    ]
    assert len({namespace_of(key).digest for key in keys}) == len(keys)
    assert namespace_of(TreeKey("a", "b")).digest == namespace_of(TreeKey("a", "b")).digest


def test_a_raw_salt_is_nowhere_in_a_namespace() -> None:
    namespace = namespace_of(TreeKey("raw-extra", "raw-salt"))
    assert "raw" not in repr(namespace) + repr(vars(namespace))


def test_the_insert_switch_is_saved_once_and_put_back() -> None:
    for before in (False, True):
        request = SimpleNamespace(skip_radix_cache_insert=before)
        key = TreeKey(None)
        life = SglangLife(request, "r", namespace_of(key), array("q", [1, 2]), key=key)
        life.forbid_insert()
        life.forbid_insert()
        assert request.skip_radix_cache_insert is True
        life.restore_insert()
        assert request.skip_radix_cache_insert is before


def test_equal_tokens_are_one_donor() -> None:
    of_sglang = array("q", [1, 2, 3])
    assert donor_id_of(token_ids_of(of_sglang)) == donor_id_of(token_ids_of(np.array([1, 2, 3])))
    assert donor_id_of(token_ids_of(of_sglang)) != donor_id_of(token_ids_of([1, 2, 4]))
