"""After a purge nothing of the tenant is left in memory or on disk, and nothing of the others is missing.

Nobody but its owner enters the folder.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semblend_core import Namespace, tenant_of_salt
from semblend_core.kv.store import DonorStore, StoreDirectoryError, Tier
from semblend_core.testing import Marker, found_in_files, found_in_memory

OpenStore = Callable[..., DonorStore]
MIB = 1024**2
TENANT = tenant_of_salt("theirs")


@pytest.fixture
def theirs(kit: Any) -> Namespace:
    return kit.namespace(salt="theirs")


@pytest.fixture
def others(kit: Any) -> Namespace:
    return kit.namespace(salt="others")


def prompt(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(10_000, 50_000, 40).tolist()


def marker_of(kit: Any, seed: int) -> Marker:
    """A piece of the prompt, and of one layer of its keys."""
    layer = kit.kv(seed).keys[1].contiguous().view(torch.uint8)
    return Marker(prompt(seed)[5:25], layer.flatten()[:64].numpy().tobytes())


def put(store: DonorStore, kit: Any, namespace: Namespace, *seeds: int, tier: Tier | None = None) -> None:
    for seed in seeds:
        assert store.put(namespace, f"donor-{seed}", kit.kv(seed), token_ids=prompt(seed), tier=tier).accepted
    assert store.flush()


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST, Tier.DISK])
def test_bytes_and_tokens_are_gone_from_every_tier(
    kit: Any, open_store: OpenStore, theirs: Namespace, others: Namespace, tmp_path: Path, tier: Tier
) -> None:
    store = open_store(device_bytes=MIB, host_bytes=MIB, disk_bytes=MIB)
    put(store, kit, theirs, 1, 2, tier=tier)
    put(store, kit, others, 3, tier=tier)
    kit.read(store, theirs, "donor-1")  # What was read lies in buffers, too.
    marker = marker_of(kit, 1)
    assert found_in_memory(store, marker), "or the search finds nothing"
    assert bool(found_in_files(tmp_path, marker)) == (tier is Tier.DISK)
    held = store.held_by(TENANT)
    assert held.stored == 2
    assert store.purge(TENANT) == held
    assert store.held_by(TENANT).nothing
    assert not store.contains(theirs, "donor-1")
    for seed in (1, 2):
        assert found_in_memory(store, marker_of(kit, seed)) == []
        assert found_in_files(tmp_path, marker_of(kit, seed)) == []
    assert kit.same(kit.read(store, others, "donor-3"), kit.kv(3))
    store.check_integrity()


def test_what_is_on_its_way_does_not_arrive(
    kit: Any, open_store: OpenStore, theirs: Namespace, others: Namespace, tmp_path: Path
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def sync(descriptor: int) -> None:
        reached.set()
        assert go_on.wait(60)
        os.fsync(descriptor)

    store = open_store(disk_bytes=MIB, store={"sync": sync})
    told: list[str] = []
    for name, seed in (("first", 1), ("second", 2)):  # One is being written, one waits.
        store.put(theirs, name, kit.kv(seed), token_ids=prompt(seed), on_durable=told.append)
    store.put(others, "third", kit.kv(3), token_ids=prompt(3), on_durable=told.append)
    assert reached.wait(60)
    assert store.forget_tenant(TENANT).stored == 2
    go_on.set()
    store.purge(TENANT)
    assert store.flush()
    assert told == ["third"]
    assert found_in_files(tmp_path, marker_of(kit, 1)) == found_in_files(tmp_path, marker_of(kit, 2)) == []
    assert store.contains(others, "third")


def test_what_an_earlier_process_left_goes_before_anybody_asks_for_it(
    kit: Any, open_store: OpenStore, theirs: Namespace, others: Namespace, tmp_path: Path
) -> None:
    earlier = open_store(disk_bytes=MIB)
    put(earlier, kit, theirs, 1)
    put(earlier, kit, theirs.for_rank(1), 2)
    put(earlier, kit, others, 3)
    assert earlier.close()
    store = open_store(disk_bytes=MIB)
    assert store.purge(TENANT).stored == 2
    assert [donor.donor_id for donor in store.recover()] == ["donor-3"]
    assert found_in_files(tmp_path, marker_of(kit, 1)) == found_in_files(tmp_path, marker_of(kit, 2)) == []


def test_damaged_files_go_whosever_they_were(
    kit: Any, open_store: OpenStore, theirs: Namespace, tmp_path: Path
) -> None:
    earlier = open_store(disk_bytes=MIB)
    put(earlier, kit, theirs, 1)
    assert earlier.close()
    (metadata,) = (tmp_path / "kv" / "donors").glob("*.json")
    metadata.write_bytes(metadata.read_bytes().replace(theirs.digest.encode(), b"0" * 32))
    store = open_store(disk_bytes=MIB)
    assert store.recover() == []
    assert found_in_files(tmp_path, marker_of(kit, 1)), "it is kept for inspection"
    store.purge(TENANT)
    assert found_in_files(tmp_path, marker_of(kit, 1)) == []


def test_a_folder_among_damaged_files_keeps_none_of_them(
    kit: Any, open_store: OpenStore, theirs: Namespace, tmp_path: Path
) -> None:
    store = open_store(disk_bytes=MIB)
    aside = tmp_path / "kv" / "quarantine"
    for number in range(4):
        (aside / f"{number}.bad_metadata.json").mkdir()
        (aside / f"{number}.bad_metadata.json" / "inside").touch()
        (aside / f"{number}.checksum.safetensors").touch()
    store.purge(TENANT)
    assert list(aside.iterdir()) == []


def test_files_that_cannot_be_deleted_are_told_until_they_can(
    kit: Any, open_store: OpenStore, theirs: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(disk_bytes=MIB)
    put(store, kit, theirs, 1)

    def refused(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", refused)
        with pytest.raises(StoreDirectoryError, match=r"files of 1 donors in .* cannot be deleted"):
            store.purge(TENANT)
    assert found_in_files(tmp_path, marker_of(kit, 1))
    store.purge(TENANT)
    assert found_in_files(tmp_path, marker_of(kit, 1)) == []


def test_a_purge_that_cannot_look_for_earlier_donors_says_so(
    kit: Any, open_store: OpenStore, theirs: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = open_store(disk_bytes=MIB)
    put(earlier, kit, theirs, 1)
    assert earlier.close()
    store = open_store(disk_bytes=MIB)

    def failing(path: Any) -> Any:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as unreadable:
        unreadable.setattr(os, "scandir", failing)
        with pytest.raises(StoreDirectoryError, match=r"cannot be (read|emptied).*purge again"):
            store.purge(TENANT)
    assert store.purge(TENANT).stored == 1


def test_a_reader_ends_in_peace_and_the_bytes_go_behind_it(kit: Any, open_store: OpenStore, theirs: Namespace) -> None:
    store = open_store(host_bytes=MIB)
    put(store, kit, theirs, 1)
    handle = store.acquire(theirs, "donor-1")
    assert handle is not None
    store.purge(TENANT)
    (part,) = store.load(handle).result(30)
    assert kit.same(part, kit.kv(1))
    handle.release()
    del handle, part
    assert store.flush()
    assert found_in_memory(store, marker_of(kit, 1)) == []


def test_a_folder_that_others_may_read_is_closed_to_them(open_store: OpenStore, tmp_path: Path) -> None:
    (tmp_path / "kv" / "donors").mkdir(parents=True)
    for folder in (tmp_path / "kv", tmp_path / "kv" / "donors"):
        folder.chmod(0o755)
    open_store(disk_bytes=MIB)
    for folder in ("", "donors", "quarantine"):
        assert stat.S_IMODE((tmp_path / "kv" / folder).stat().st_mode) == 0o700


def test_one_that_is_not_ours_to_close_is_refused(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StoreDirectoryError, match=r"SEMBLEND_STORE_DISK_PATH=.*open to others"):
        open_store(disk_bytes=MIB)
