"""Under whose name a request is kept, and what is put back behind it."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from semblend_core import Namespace, donor_id_of, tenant_of_salt
from semblend_core.serving import Namespaces, token_ids_of
from semblend_sglang.scheduler.requests import SglangLife, TreeKey


def namespace_of(key: TreeKey) -> Namespace:
    shared = {"model": "m", "revision": "local", "tokenizer": "t", "dtype": "bfloat16", "kv_layout": "sglang"}
    return Namespaces(**shared, block_size=1).of(key.adapter, key.salt)


def test_namespaces_keep_salts_adapters_and_nobody_apart() -> None:
    keys = [
        TreeKey(None),
        TreeKey("a"),
        TreeKey(None, "a"),
        TreeKey("a", "a"),
        TreeKey("lora", lora_id="lora"),
        TreeKey("alora", lora_id="lora"),
        TreeKey("elastic_ep_size=4"),
        TreeKey("lora|elastic_ep_size=4", lora_id="lora"),
        TreeKey('["a", null]'),
    ]
    assert len({namespace_of(key).digest for key in keys}) == len(keys)
    assert namespace_of(TreeKey("a", "b")).digest == namespace_of(TreeKey("a", "b")).digest


@pytest.mark.parametrize(
    ("key", "is_salted"),
    [
        (TreeKey(None), False),
        (TreeKey("", ""), False),
        (TreeKey("lora", lora_id="lora"), False),
        (TreeKey("elastic_ep_size=4"), False),
        (TreeKey("lora|elastic_ep_size=4", lora_id="lora"), False),
        (TreeKey("a"), True),
        (TreeKey(None, "a"), True),
        (TreeKey("alora", lora_id="lora"), True),
        (TreeKey("a|elastic_ep_size=4"), True),
        (TreeKey("lora"), True),
    ],
)
def test_what_sglang_adds_to_a_key_makes_nobody_a_tenant(key: TreeKey, is_salted: bool) -> None:
    assert namespace_of(key).is_salted is is_salted


@pytest.mark.parametrize(
    ("key", "salt"),
    [
        (TreeKey(None, "a"), "a"),
        (TreeKey("extra", "a"), "a"),
        (TreeKey("extralora", "a", lora_id="lora"), "a"),
        (TreeKey("a"), "a"),
        (TreeKey("alora|elastic_ep_size=4", lora_id="lora"), "a"),
        (TreeKey("lora", lora_id="lora"), None),
    ],
)
def test_a_tenant_is_told_by_its_salt_under_every_key_and_adapter(key: TreeKey, salt: str | None) -> None:
    assert namespace_of(key).salt_digest == tenant_of_salt(salt)


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
