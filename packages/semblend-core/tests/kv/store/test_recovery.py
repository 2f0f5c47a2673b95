"""After a restart every durable donor is there; a folder has one owner; a failing disk fails nobody."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semblend_core import Namespace
from semblend_core.donors import DonorRegistry
from semblend_core.kv.store import DonorStore, StoreDecline, StoreDirectoryError, Tier
from semblend_core.kv.store.disk_tier import DiskStorage

OpenStore = Callable[..., DonorStore]
MIB = 1024**2


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_recovered_donors_can_be_registered_and_read(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    tokens = {name: np.random.default_rng(seed).integers(0, 50_000, 40) for seed, name in enumerate("abc")}
    with open_store(disk_bytes=MIB) as store:
        for seed, name in enumerate("abc"):
            store.put(namespace, name, kit.kv(seed, first_position=seed), token_ids=tokens[name])
        store.put(namespace, "without ids", kit.kv(9))
        assert store.flush()
        assert store.stats().donors == 4
        charged = store.stats().tiers[Tier.DISK].bytes

    store = open_store(disk_bytes=MIB)
    assert not store.contains(namespace, "a"), "nobody looked yet"
    found = store.recover()
    assert [donor.donor_id for donor in found] == ["a", "b", "c", "without ids"], "the oldest first"
    assert {donor.namespace_digest for donor in found} == {namespace.digest}
    assert store.stats().tiers[Tier.DISK].bytes == charged
    registry = DonorRegistry()
    for donor in found:
        if donor.token_ids is not None:
            assert registry.register(donor.namespace_digest, donor.donor_id, donor.token_ids)[0] is None
    assert len(registry) == 3
    assert found[3].token_ids is None
    for seed, name in enumerate("abc"):
        ids = found[seed].token_ids
        assert ids is not None
        assert ids.tolist() == tokens[name].tolist()
        part = kit.read(store, namespace, name)
        assert kit.same(part, kit.kv(seed))
        assert part.first_position == seed
    assert [donor.donor_id for donor in store.recover()] == ["without ids", "a", "b", "c"], "used ones leave later"


def test_a_first_write_takes_stock_before_it_takes_room(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path
) -> None:
    with open_store(disk_bytes=40_000) as store:
        for number in range(4):
            store.put(namespace, str(number), kit.kv(number))
        assert store.flush()
    store = open_store(disk_bytes=40_000)
    for number in range(4, 20):
        store.put(namespace, str(number), kit.kv(number))
        assert store.flush()
        store.check_integrity()
        on_disk = sum(path.stat().st_size for path in (tmp_path / "kv" / "donors").iterdir())
        assert on_disk <= store.stats().tiers[Tier.DISK].bytes <= 40_000


def test_a_smaller_budget_costs_the_oldest(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    with open_store(disk_bytes=MIB) as store:
        for number in range(6):
            store.put(namespace, str(number), kit.kv(number))
        assert store.flush()
        one = store.stats().tiers[Tier.DISK].bytes // 6
    store = open_store(disk_bytes=2 * one)
    assert [donor.donor_id for donor in store.recover()] == ["4", "5"]
    store.check_integrity()


def test_sorting_out_what_a_budget_keeps_compares_no_donor_with_all_others(
    kit: Any, open_store: OpenStore, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []

    def equal(one: object, other: object) -> bool:
        compared.append(other)
        return one is other

    with open_store(disk_bytes=MIB) as store:
        for number in range(6):
            store.put(namespace, str(number), kit.kv(number))
        assert store.flush()
        one = store.stats().tiers[Tier.DISK].bytes // 6
    monkeypatch.setattr(DiskStorage, "__eq__", equal)
    assert len(open_store(disk_bytes=3 * one).recover()) == 3
    assert compared == [], "100,000 donors would take minutes"


def test_a_folder_that_cannot_be_read_yet_is_looked_at_again(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path
) -> None:
    with open_store(disk_bytes=MIB) as store:
        store.put(namespace, "old", kit.kv(1))
        assert store.flush()
        charged = store.stats().tiers[Tier.DISK].bytes
    store = open_store(disk_bytes=MIB)
    donors, away = tmp_path / "kv" / "donors", tmp_path / "away"
    donors.rename(away)
    assert store.recover() == []
    assert store.put(namespace, "early", kit.kv(2)).accepted
    assert store.flush()
    assert store.stats().declines == {StoreDecline.DISK_ERROR: 1}, "nothing comes in beside files nobody counted"

    away.rename(donors)
    assert store.put(namespace, "later", kit.kv(3)).accepted
    assert store.flush()
    assert [donor.donor_id for donor in store.recover()] == ["old", "later"]
    assert store.stats().tiers[Tier.DISK].bytes > charged
    for name, seed in (("old", 1), ("later", 3)):
        assert kit.same(kit.read(store, namespace, name), kit.kv(seed))


def test_an_unreadable_folder_takes_nothing_in_though_it_can_be_written(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(disk_bytes=MIB) as store:
        store.put(namespace, "old", kit.kv(1))
        assert store.flush()
    store = open_store(disk_bytes=MIB)

    def unreadable(path: object) -> None:
        raise OSError(errno.EIO, "no answer")

    with monkeypatch.context() as patch:
        patch.setattr("semblend_core.kv.store.directory.os.scandir", unreadable)
        store.put(namespace, "early", kit.kv(2))
        assert store.flush()
    assert store.stats().declines == {StoreDecline.DISK_ERROR: 1}
    assert len(list((tmp_path / "kv" / "donors").iterdir())) == 2
    assert [donor.donor_id for donor in store.recover()] == ["old"]


def test_the_later_of_two_files_of_one_donor_counts(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path
) -> None:
    donors, saved = tmp_path / "kv" / "donors", tmp_path / "saved"
    with open_store(disk_bytes=MIB) as store:
        store.put(namespace, "a", kit.kv(1))
        assert store.flush()
        shutil.copytree(donors, saved)
        store.forget(namespace, "a")
        store.put(namespace, "a", kit.kv(2))
        assert store.flush()
    shutil.copytree(saved, donors, dirs_exist_ok=True)  # As if the process had ended before the deletion.
    store = open_store(disk_bytes=MIB)
    assert len(store.recover()) == 1
    assert kit.same(kit.read(store, namespace, "a"), kit.kv(2))
    assert len(list(donors.iterdir())) == 2


def test_what_is_in_memory_already_outranks_an_old_file(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    with open_store(disk_bytes=MIB) as store:
        store.put(namespace, "a", kit.kv(1))
        assert store.flush()
    store = open_store(disk_bytes=MIB, host_bytes=MIB)
    store.put(namespace, "a", kit.kv(2))
    assert store.flush()
    assert store.recover() == []
    assert kit.same(kit.read(store, namespace, "a"), kit.kv(2))


def test_a_second_process_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    code = """
        import sys
        from semblend_core.kv.store import DonorStore, StoreOptions
        DonorStore(StoreOptions(host_bytes=0, disk_bytes=10**6, disk_path=sys.argv[1]), device="cpu").close()
    """
    store = open_store(disk_bytes=MIB)
    refused = run_python(code, str(tmp_path / "kv"))
    assert refused.returncode != 0
    assert "StoreDirectoryError: disk_path=" in refused.stderr
    assert "SEMBLEND_STORE_DISK_PATH" in refused.stderr
    with pytest.raises(StoreDirectoryError, match="in use"):
        open_store(disk_bytes=MIB)
    assert store.close()
    open_store(disk_bytes=MIB)


FULL_DISK = """
    import json, resource, sys, torch
    from semblend_core import Namespace
    from semblend_core.kv.donor_kv import DonorKv
    from semblend_core.kv.store import DonorStore, StoreOptions

    namespace = Namespace(model="m", revision="r", tokenizer="t", dtype="f", kv_layout="nhd", block_size=1,
                          adapter=None, salt=None)
    store = DonorStore(StoreOptions(host_bytes=0, disk_bytes=10**8, disk_path=sys.argv[1]), device="cpu")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    small, large = (DonorKv(torch.randn(2, n, 2, 8), None) for n in (10, 10_000))
    accepted = [store.put(namespace, name, kv).accepted for name, kv in (("x", small), ("y", large), ("z", small))]
    assert store.flush()
    stats = store.stats()
    store.check_integrity()
    print(json.dumps([accepted, dict(stats.declines), [store.contains(namespace, name) for name in "xyz"],
                      stats.tiers["disk"].donors]))
    store.close()
"""


def test_a_file_system_that_refuses_to_grow_costs_that_donor_only(tmp_path: Path) -> None:
    run = run_python(FULL_DISK, str(tmp_path))
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [[True, True, True], {"disk_full": 1}, [True, False, True], 2]
    assert len(list((tmp_path / "donors").iterdir())) == 4, "no half-written file is left"


def test_a_file_system_without_room_is_not_even_tried(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    free = shutil.disk_usage("/").total * 4
    store = open_store(disk_bytes=free)
    kv = kit.kv(tokens=1)
    store._tiers[Tier.DISK].directory.free_bytes = lambda: kv.nbytes  # type: ignore[attr-defined]
    store.put(namespace, "a", kv)
    assert store.flush()
    assert store.stats().declines == {StoreDecline.DISK_FULL: 1}


def test_a_folder_that_vanished_costs_the_disk_tier_only(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path
) -> None:
    store = open_store(device_bytes=kit.kv().nbytes, disk_bytes=MIB)
    shutil.rmtree(tmp_path / "kv" / "donors")
    for name in "ab":
        assert store.put(namespace, name, kit.kv(ord(name))).accepted
        assert store.flush()
    assert store.contains(namespace, "b")
    assert not store.contains(namespace, "a")
    assert store.stats().tiers[Tier.DISK].declines == {StoreDecline.DISK_ERROR: 1}
    store.check_integrity()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_became_unwritable_is_counted(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path
) -> None:
    store = open_store(disk_bytes=MIB)
    (tmp_path / "kv" / "donors").chmod(0o500)
    try:
        assert store.put(namespace, "a", kit.kv()).accepted
        assert store.flush()
    finally:
        (tmp_path / "kv" / "donors").chmod(0o700)
    assert store.stats().declines == {StoreDecline.DISK_ERROR: 1}
