"""Whatever befalls a store on disk: no wrong bytes, no file left open, books that agree, and it goes on afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semblend_core import Namespace
from semblend_core.kv.store import DonorStore, StoreDecline, Tier, TransferFailedError, clean_memory
from semblend_core.testing import STORE_FAULTS, open_files

OpenStore = Callable[..., DonorStore]
MIB = 1024**2
TOKENS = 100
NOT_KEPT = {"disk full": StoreDecline.DISK_FULL, "permission lost": StoreDecline.DISK_ERROR}
NOT_READ = {"permission lost", "donors damaged", "no memory"}


@pytest.mark.parametrize("fault", sorted(STORE_FAULTS.keys() - {"disk hangs"}))
def test_a_fault_costs_donors_at_most(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path, fault: str
) -> None:
    store = open_store(disk_bytes=MIB)
    for seed, name in enumerate(("a", "b")):
        store.put(namespace, name, kit.kv(seed, TOKENS))
    assert store.flush()
    assert kit.same(kit.read(store, namespace, "b"), kit.kv(1, TOKENS))
    files = open_files()
    with STORE_FAULTS[fault](tmp_path):
        assert store.put(namespace, "meanwhile", kit.kv(2, TOKENS)).accepted
        assert store.flush()
        if fault in NOT_READ:
            with pytest.raises(TransferFailedError):
                kit.read(store, namespace, "a")
        else:
            assert kit.same(kit.read(store, namespace, "a"), kit.kv(0, TOKENS))
    assert store.contains(namespace, "meanwhile") == (fault not in NOT_KEPT)
    assert store.stats().declines == ({NOT_KEPT[fault]: 1} if fault in NOT_KEPT else {})
    store.check_integrity()
    store.put(namespace, "afterwards", kit.kv(3, TOKENS))
    assert store.flush()
    assert kit.same(kit.read(store, namespace, "afterwards"), kit.kv(3, TOKENS))
    assert open_files() <= files, "a file is left open"


def test_a_disk_that_hangs_holds_up_its_own_reader_only(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path
) -> None:
    store = open_store(disk_bytes=MIB)
    store.put(namespace, "a", kit.kv(0, TOKENS))
    assert store.flush()
    handle = store.acquire(namespace, "a")
    assert handle is not None
    with handle:
        with STORE_FAULTS["disk hangs"](tmp_path):
            transfer = store.load(handle)
            assert not transfer.done()
            assert store.put(namespace, "b", kit.kv(1, TOKENS)).accepted
            assert store.contains(namespace, "a")
        (part,) = transfer.result(30)
    assert kit.same(part, kit.kv(0, TOKENS))
    assert store.flush()
    assert kit.same(kit.read(store, namespace, "b"), kit.kv(1, TOKENS))


@pytest.mark.parametrize("disk_bytes", [0, MIB])
def test_a_host_without_memory_sends_donors_down_or_declines_them(
    kit: Any, open_store: OpenStore, namespace: Namespace, monkeypatch: pytest.MonkeyPatch, disk_bytes: int
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patched:
        patched.setattr(clean_memory.mmap, "mmap", failing)
        store = open_store(host_bytes=MIB, disk_bytes=disk_bytes)
        store.put(namespace, "a", kit.kv(0, TOKENS))
        assert store.flush()
    if disk_bytes:
        assert store.tier_of(namespace, "a") is Tier.DISK
        assert kit.same(kit.read(store, namespace, "a"), kit.kv(0, TOKENS))
    else:
        assert not store.contains(namespace, "a")
        assert store.stats().declines == {StoreDecline.OUT_OF_MEMORY: 1}
    store.check_integrity()
