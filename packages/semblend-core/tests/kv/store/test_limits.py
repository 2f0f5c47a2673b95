"""A donor that is too old is never loaded, also after a restart; who may lie in memory only is never on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semblend_core import Namespace, Settings, tenant_of_salt
from semblend_core.kv.store import DonorStore, Gone, StoreOptions, Tier
from semblend_core.testing import wait_until

OpenStore = Callable[..., DonorStore]
MIB = 1024**2


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead, real = 0, time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + self._ahead)

    def later(self, seconds: float) -> None:
        self._ahead += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def files(tmp_path: Path) -> int:
    return len(list((tmp_path / "kv" / "donors").glob("*")))


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST, Tier.DISK])
def test_a_donor_that_is_too_old_is_not_found(
    kit: Any, open_store: OpenStore, namespace: Namespace, clock: Clock, tier: Tier
) -> None:
    store = open_store(device_bytes=MIB, host_bytes=MIB, disk_bytes=MIB, max_age_s=3600)
    store.put(namespace, "a", kit.kv(1), tier=tier)
    assert store.flush()
    clock.later(3590)
    assert store.contains(namespace, "a")
    clock.later(20)
    assert not store.contains(namespace, "a")
    assert store.acquire(namespace, "a") is None


def test_it_is_dropped_though_nobody_asks(
    kit: Any, open_store: OpenStore, namespace: Namespace, clock: Clock, tmp_path: Path
) -> None:
    gone: list[Any] = []
    options = {"max_age_s": 0.2, "store": {"on_gone": lambda key, why: gone.append((key.donor_id, why))}}
    store = open_store(disk_bytes=MIB, **options)
    store.put(namespace, "a", kit.kv(1), token_ids=range(40))
    wait_until(lambda: gone == [("a", Gone.EXPIRED)], "the owner is told")
    assert store.flush()
    assert files(tmp_path) == 0
    assert store.stats().gone == {Gone.EXPIRED: 1}
    store.check_integrity()


def test_age_counts_from_the_capture_over_tiers_and_restarts(
    kit: Any, open_store: OpenStore, namespace: Namespace, clock: Clock, tmp_path: Path
) -> None:
    first = open_store(host_bytes=kit.kv(1).keys.numel() * 8, host_slab_bytes=4096, disk_bytes=MIB, max_age_s=3600)
    first.put(namespace, "old", kit.kv(1), token_ids=range(40))
    assert first.flush()
    clock.later(3000)
    first.put(namespace, "young", kit.kv(2), token_ids=range(40))
    first.put(namespace, "younger", kit.kv(3), token_ids=range(40))  # By now the old one had to go to disk.
    assert first.flush()
    assert first.tier_of(namespace, "old") is Tier.DISK
    assert first.close()
    clock.later(590)
    second = open_store(disk_bytes=MIB, max_age_s=3600)
    assert "old" in [donor.donor_id for donor in second.recover()]
    assert second.close()
    clock.later(20)
    third = open_store(disk_bytes=MIB, max_age_s=3600)
    assert "old" not in [donor.donor_id for donor in third.recover()]
    assert third.close()


def test_a_tenant_of_memory_only_is_never_on_disk(kit: Any, open_store: OpenStore, tmp_path: Path) -> None:
    theirs, others = kit.namespace(salt="theirs"), kit.namespace(salt="others")
    size = kit.kv(1).keys.numel() * 8
    store = open_store(host_bytes=size, host_slab_bytes=4096, disk_bytes=MIB, memory_only=(tenant_of_salt("theirs"),))
    for number in range(6):  # Each makes the ones before leave host memory.
        store.put(theirs, f"their {number}", kit.kv(number), token_ids=range(40))
        store.put(others, f"other {number}", kit.kv(10 + number), token_ids=range(40))
        assert store.flush()
        on_disk = [entry.key.namespace for entry in store._holdings.entries_in(Tier.DISK)]
        assert theirs.digest not in on_disk
    assert others.digest in on_disk
    store.check_integrity()


def test_what_may_no_longer_be_on_disk_is_deleted_at_the_next_start(
    kit: Any, open_store: OpenStore, tmp_path: Path
) -> None:
    first = open_store(disk_bytes=MIB)
    for salt in ("theirs", "others"):
        first.put(kit.namespace(salt=salt), salt, kit.kv(1), token_ids=range(40))
    assert first.flush()
    assert first.close()
    second = open_store(disk_bytes=MIB, memory_only=(tenant_of_salt("theirs"),))
    assert [donor.donor_id for donor in second.recover()] == ["others"]
    assert files(tmp_path) == 2
    assert second.close()
    third = open_store(disk_bytes=MIB, memory_only=("all",))
    assert third.recover() == []
    assert files(tmp_path) == 0


def test_the_settings_reach_the_store() -> None:
    tenant = tenant_of_salt("x")
    settings = Settings.from_env({"SEMBLEND_MAX_AGE_S": "60", "SEMBLEND_MEMORY_ONLY": f"{tenant}, {'0' * 16}"})
    options = StoreOptions.from_settings(settings)
    assert options.max_age_s == 60
    assert options.memory_only == (tenant, "0" * 16)
