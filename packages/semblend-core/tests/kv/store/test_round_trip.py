"""What comes out of the store is, bit for bit, what went in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from semblend_core import Namespace
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store import DonorStore, StoreDecline, Tier, TransferFailedError

OPTIONS = {Tier.DEVICE: "device_bytes", Tier.HOST: "host_bytes", Tier.DISK: "disk_bytes"}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]

OpenStore = Callable[..., DonorStore]
MIB = 1024**2


@pytest.mark.parametrize("values", [True, False], ids=["kv", "mla"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST, Tier.DISK])
def test_every_tier_and_type_is_bit_exact(
    kit: Any, open_store: OpenStore, namespace: Namespace, tier: Tier, dtype: torch.dtype, values: bool
) -> None:
    store = open_store(**{OPTIONS[tier]: MIB})
    kv = kit.kv(1, dtype=dtype, values=values, first_position=5)
    assert store.put(namespace, "a", kv).accepted
    assert store.flush()
    assert store.tier_of(namespace, "a") is tier
    found = kit.read(store, namespace, "a")
    assert kit.same(found, kv)
    assert found.first_position == 5
    assert store.stats().tiers[tier].hits == 1


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST, Tier.DISK])
def test_token_ranges_come_one_by_one_at_their_positions(
    kit: Any, open_store: OpenStore, namespace: Namespace, tier: Tier
) -> None:
    store = open_store(**{OPTIONS[tier]: 64 * MIB}, host_slab_bytes=8 * MIB)
    # Rows of 64 KiB: several checksummed chunks per layer, cut in the middle by the ranges.
    keys = torch.randn(2, 50, 8, 2048)
    kv = DonorKv(keys, keys * 2, first_position=3)
    store.put(namespace, "a", kv)
    assert store.flush()
    ranges = [(49, 50), (0, 1), (7, 33), (16, 32)]
    handle = store.acquire(namespace, "a")
    assert handle is not None
    with handle:
        parts = store.load(handle, ranges).result(30)
    assert [part.first_position for part in parts] == [52, 3, 10, 19]
    for part, (start, stop) in zip(parts, ranges, strict=True):
        assert kit.same(part, DonorKv(kv.keys[:, start:stop], (keys * 2)[:, start:stop]))


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST, Tier.DISK])
def test_a_source_need_not_be_contiguous(kit: Any, open_store: OpenStore, namespace: Namespace, tier: Tier) -> None:
    store = open_store(**{OPTIONS[tier]: MIB})
    paged = torch.randn(40, 3, 2, 16)
    kv = DonorKv(paged[..., :8].transpose(0, 1), paged[..., 8:].transpose(0, 1))
    store.put(namespace, "a", kv)
    assert store.flush()
    assert kit.same(kit.read(store, namespace, "a"), kv)


def test_the_device_tier_hands_out_views_and_the_others_copies(
    kit: Any, open_store: OpenStore, namespace: Namespace
) -> None:
    store = open_store(device_bytes=MIB, host_bytes=MIB)
    store.put(namespace, "near", kit.kv(1))
    store.put(namespace, "far", kit.kv(2), tier=Tier.HOST)
    assert store.flush()
    assert kit.read(store, namespace, "near").keys.data_ptr() == kit.read(store, namespace, "near").keys.data_ptr()
    assert kit.read(store, namespace, "far").keys.data_ptr() != kit.read(store, namespace, "far").keys.data_ptr()


def test_namespaces_and_ranks_are_kept_apart(kit: Any, open_store: OpenStore, tmp_path: Path) -> None:
    spaces = [kit.namespace(), kit.namespace(rank=1), kit.namespace(salt="tenant-secret"), kit.namespace(model="other")]
    store = open_store(disk_bytes=MIB)
    for seed, space in enumerate(spaces):
        assert store.put(space, "same id", kit.kv(seed)).accepted
    assert store.flush()
    for seed, space in enumerate(spaces):
        assert kit.same(kit.read(store, space, "same id"), kit.kv(seed))
    store.forget(spaces[0], "same id")
    assert [store.contains(space, "same id") for space in spaces] == [False, True, True, True]
    assert store.flush()
    for file in (tmp_path / "kv" / "donors").iterdir():
        assert b"tenant-secret" not in file.read_bytes()
        assert "same id" not in file.name


@pytest.mark.parametrize("donor_id", ["../../etc/passwd", "a/b\0c", "x" * 5000, "\ud800 lone", "名前 🤖", " "])
def test_a_donor_id_may_hold_any_character(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path, donor_id: str
) -> None:
    store = open_store(disk_bytes=MIB)
    assert store.put(namespace, donor_id, kit.kv(3)).accepted
    assert store.flush()
    assert kit.same(kit.read(store, namespace, donor_id), kit.kv(3))
    assert store.close()
    again = open_store(disk_bytes=MIB)
    assert [donor.donor_id for donor in again.recover()] == [donor_id]
    assert kit.same(kit.read(again, namespace, donor_id), kit.kv(3))


def test_the_file_is_a_safetensors_file_and_the_metadata_is_json(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path
) -> None:
    store = open_store(disk_bytes=MIB)
    kv = kit.kv(4, dtype=torch.float16)
    store.put(namespace, "a", kv, token_ids=range(40))
    assert store.flush()
    (data,) = (tmp_path / "kv" / "donors").glob("*.safetensors")
    with safe_open(data, "pt") as file:
        assert torch.equal(file.get_tensor("keys").view(torch.uint8), kv.keys.view(torch.uint8))
        assert torch.equal(file.get_tensor("values").view(torch.uint8), kv.values.view(torch.uint8))
    (described,) = (tmp_path / "kv" / "donors").glob("*.json")
    whole = json.loads(described.read_bytes())
    assert (whole["format"], whole["donor"]["donor_id"], whole["donor"]["dtype"]) == (2, "a", "float16")
    assert whole["donor"]["token_ids"] == list(range(40))
    assert {path.stat().st_mode & 0o077 for path in (data, described)} == {0}, "prompts are for their owner alone"


def test_a_handle_that_was_released_loads_nothing(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    store = open_store(host_bytes=MIB)
    store.put(namespace, "a", kit.kv())
    assert store.flush()
    handle = store.acquire(namespace, "a")
    assert handle is not None
    for wrong in [[(0, 41)], [(-1, 4)], [(5, 5)], []]:
        with pytest.raises(ValueError, match="range"):
            store.load(handle, wrong)
    handle.release()
    handle.release()
    with pytest.raises(ValueError, match="acquire the donor again"):
        store.load(handle)


def test_a_load_after_close_fails_with_a_reason(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    store = open_store(host_bytes=MIB)
    store.put(namespace, "a", kit.kv())
    assert store.flush()
    handle = store.acquire(namespace, "a")
    assert handle is not None
    store.close()
    transfer = store.load(handle)
    assert transfer.done()
    assert not transfer.ready()
    assert transfer.failed is StoreDecline.CLOSED
    with pytest.raises(TransferFailedError, match="closed"):
        transfer.result()
    handle.release()
    assert store.acquire(namespace, "a") is None
    assert store.put(namespace, "b", kit.kv()).reason is StoreDecline.CLOSED


def test_tensors_that_are_given_are_kept_as_they_are(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    store = open_store(device_bytes=2 * kit.kv().nbytes)
    given, lent = kit.kv(1), kit.kv(2)
    assert store.put(namespace, "given", given, give=True).accepted
    assert store.put(namespace, "lent", lent).accepted
    assert store.flush()
    for name, kv, kept in (("given", given, True), ("lent", lent, False)):
        handle = store.acquire(namespace, name)
        assert handle is not None
        with handle:
            (part,) = store.load(handle).result()
            assert kit.same(part, kv)
            assert (part.keys.data_ptr() == kv.keys.data_ptr()) == kept
    store.check_integrity()


def test_given_tensors_are_copied_into_other_memory(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    store = open_store(host_bytes=1 << 20)
    given = kit.kv(1)
    assert store.put(namespace, "given", given, give=True).accepted
    assert store.flush()
    given.keys.zero_()
    assert kit.same(kit.read(store, namespace, "given"), kit.kv(1))
