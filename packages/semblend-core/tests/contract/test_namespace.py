"""A namespace is one value in every process, differs in every field, and never shows a salt."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.contract import Namespace, digest_at_rank, tenant_of

FIELDS: dict[str, Any] = {
    "model": "Qwen/Qwen2.5-7B",
    "revision": "abc",
    "tokenizer": "Qwen@abc",
    "dtype": "bfloat16",
    "kv_layout": "nhd",
    "block_size": 16,
    "adapter": None,
    "tensor_parallel_size": 4,
    "tensor_parallel_rank": 1,
    "extras": (("image", "7"), ("audio", "8")),
    "salt": "tenant-secret-4711",
}

OTHER: list[dict[str, Any]] = [
    {"model": "Qwen/Qwen2.5-7b"},
    {"revision": "abd"},
    {"tokenizer": "Qwen@abd"},
    {"dtype": "float16"},
    {"kv_layout": "hnd"},
    {"block_size": 32},
    {"adapter": "lora"},
    {"adapter": "None"},
    {"tensor_parallel_size": 8},
    {"tensor_parallel_rank": 2},
    {"extras": ()},
    {"extras": (("image", "8"), ("audio", "8"))},
    {"extras": (("image", "7"), ("audio", "8"), ("video", ""))},
    {"salt": None},
    {"salt": ""},
    {"salt": "None"},
    {"salt": "tenant-secret-4712"},
    {"salt": "\ud800"},
]


def build(**changed: Any) -> Namespace:
    return Namespace(**{**FIELDS, **changed})


def test_equal_fields_are_equal_namespaces() -> None:
    assert build() == build()
    assert hash(build()) == hash(build())
    assert build().digest == build().digest
    assert len(build().digest) == 32


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_digest_is_the_same_in_another_process(hash_seed: str) -> None:
    program = f"from semblend_core.contract import Namespace; print(Namespace(**{FIELDS!r}).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.strip() == build().digest


def test_every_field_makes_a_difference_of_its_own() -> None:
    digests = [build().digest, *(build(**changed).digest for changed in OTHER)]
    assert len(set(digests)) == len(digests)
    assert all(build(**changed) != build() for changed in OTHER)


def test_every_field_is_changed_in_one_of_these_cases() -> None:
    assert {name for changed in OTHER for name in changed} == set(FIELDS)


def test_fields_do_not_run_into_each_other() -> None:
    assert build(model="ab", revision="c").digest != build(model="a", revision="bc").digest
    assert build(extras=(("a", "b"), ("c", "d"))).digest != build(extras=(("a", "b,c"), ("", "d"))).digest


@pytest.mark.parametrize("salt", ["tenant-secret-4711", "pässword", "secret\ud800"])
def test_a_raw_salt_is_nowhere(salt: str) -> None:
    namespace = build(salt=salt).for_rank(2)
    shown = repr(namespace) + str(namespace) + repr(vars(namespace)) + f"{namespace}"
    assert salt not in shown
    assert salt.encode("utf-8", "surrogatepass") not in pickle.dumps(namespace)
    assert not hasattr(namespace, "salt")
    assert all(salt not in str(getattr(namespace, name)) for name in dir(namespace))


def test_a_wrong_salt_is_not_quoted() -> None:
    with pytest.raises(ValueError, match="salt") as refusal:
        build(salt=b"tenant-secret-4711")
    assert "4711" not in str(refusal.value)


def test_extras_may_come_in_any_order() -> None:
    assert build(extras=(("a", "1"), ("b", "2"))) == build(extras=(("b", "2"), ("a", "1")))
    assert build(extras=[("b", "2"), ("a", "1")]).extras == (("a", "1"), ("b", "2"))


def test_another_tenants_namespace_needs_only_the_digest_of_its_salt() -> None:
    theirs = build(salt="theirs")
    assert build(salt="ours").for_tenant(theirs.salt_digest) == theirs
    assert build(salt="ours").for_tenant(theirs.salt_digest).digest == theirs.digest
    assert build(salt="ours").for_tenant(build(salt=None).salt_digest) == build(salt=None)


@pytest.mark.parametrize("digest", ["", "theirs", "0" * 15, "G" * 16])
def test_a_tenant_is_named_by_sixteen_digits(digest: str) -> None:
    with pytest.raises(ValueError, match="16 hexadecimal digits"):
        build().for_tenant(digest)


@pytest.mark.parametrize("rank", range(4))
def test_another_ranks_namespace_is_the_one_built_with_that_rank(rank: int) -> None:
    assert build().for_rank(rank) == build(tensor_parallel_rank=rank)
    assert build().for_rank(rank).digest == build(tensor_parallel_rank=rank).digest
    assert build().tensor_parallel_rank == 1


def test_a_digest_alone_tells_those_of_the_other_ranks() -> None:
    shared = build(tensor_parallel_rank=0).digest
    digests = [build(tensor_parallel_rank=rank).digest for rank in range(4)]
    assert [digest_at_rank(shared, rank) for rank in range(4)] == digests
    assert {digest_at_rank(digest, rank) for rank, digest in enumerate(digests)} == {shared}
    assert len(set(digests)) == 4
    assert {tenant_of(digest) for digest in digests} == {build().salt_digest}


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_the_group_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="outside tensor_parallel_size 4"):
        build().for_rank(rank)
    with pytest.raises(ValueError, match="outside tensor_parallel_size 4"):
        build(tensor_parallel_rank=rank)


def test_a_namespace_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(build()))
    assert again == build()
    assert again.digest == build().digest
    assert again.for_rank(3) == build(tensor_parallel_rank=3)


@pytest.mark.parametrize("name", ["model", "revision", "tokenizer", "dtype", "kv_layout"])
@pytest.mark.parametrize("wrong", ["", None, 5])
def test_an_empty_or_missing_field_is_refused_by_name(name: str, wrong: object) -> None:
    with pytest.raises(ValueError, match=name):
        build(**{name: wrong})


@pytest.mark.parametrize("changed", [{"adapter": ""}, {"adapter": 5}, {"block_size": 0}])
def test_other_wrong_fields_are_refused_by_name(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changed))):
        build(**changed)


@settings(deadline=None)
@given(st.one_of(st.none(), st.text()), st.one_of(st.none(), st.text()))
def test_two_salts_share_a_namespace_only_if_they_are_the_same(one: str | None, other: str | None) -> None:
    assert (build(salt=one) == build(salt=other)) == (one == other)
    assert (build(salt=one).digest == build(salt=other).digest) == (one == other)
