"""A donor is visible when its bytes are durable, not before; the caller never waits for that."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semblend_core import Namespace
from semblend_core.kv.store import (
    DonorKey,
    DonorStore,
    Gone,
    StoreDecline,
    StoreDirectoryError,
    Tier,
    TransferPendingError,
    disk_tier,
)
from semblend_core.kv.store.budget import Copy
from semblend_core.kv.store.vocabulary import Miss

OpenStore = Callable[..., DonorStore]
MIB = 1024**2


class SlowDisk:
    """Syncs for real, when it is let."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def sync(self, descriptor: int) -> None:
        self.reached.set()
        assert self.go_on.wait(60)
        os.fsync(descriptor)


@pytest.fixture
def slow_disk(open_store: OpenStore) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    yield disk
    disk.go_on.set()


def test_nothing_is_seen_before_the_file_is_synced(
    kit: Any, open_store: OpenStore, namespace: Namespace, slow_disk: SlowDisk, tmp_path: Path
) -> None:
    store = open_store(disk_bytes=MIB, store={"sync": slow_disk.sync})
    durable: list[str] = []
    assert store.put(namespace, "a", kit.kv(1), on_durable=durable.append).accepted
    assert slow_disk.reached.wait(60), "put has returned though the write cannot end"
    assert not store.contains(namespace, "a")
    assert store.tier_of(namespace, "a") is None
    assert store.acquire(namespace, "a") is None
    assert store.stats().misses == {Miss.NOT_DURABLE: 1}
    assert store.stats().pending == 1
    assert durable == []
    assert not store.flush(0.01)
    assert list((tmp_path / "kv" / "donors").glob("*.json")) == [], "metadata is written last"
    store.check_integrity()

    slow_disk.go_on.set()
    assert store.flush()
    assert durable == ["a"]
    assert store.contains(namespace, "a")
    assert kit.same(kit.read(store, namespace, "a"), kit.kv(1))


def test_a_donor_is_visible_when_its_owner_is_told(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    store = open_store(host_bytes=MIB)
    seen: list[tuple[str, bool]] = []
    store.put(namespace, "a", kit.kv(), on_durable=lambda name: seen.append((name, store.contains(namespace, name))))
    assert store.flush()
    assert seen == [("a", True)]


def test_an_overfull_queue_declines_and_counts(
    kit: Any, open_store: OpenStore, namespace: Namespace, slow_disk: SlowDisk
) -> None:
    store = open_store(disk_bytes=MIB, queue_depth=2, store={"sync": slow_disk.sync})
    store.put(namespace, "under way", kit.kv())
    assert slow_disk.reached.wait(60)
    answers = [store.put(namespace, str(number), kit.kv(number)).reason for number in range(4)]
    assert answers == [None, None, StoreDecline.QUEUE_FULL, StoreDecline.QUEUE_FULL]
    assert store.stats().declines == {StoreDecline.QUEUE_FULL: 2}
    slow_disk.go_on.set()
    assert store.flush()
    assert store.stats().donors == 3
    assert store.put(namespace, "2", kit.kv(2)).accepted, "a declined donor may come again"


def test_waiting_donors_have_a_byte_limit_too(
    kit: Any, open_store: OpenStore, namespace: Namespace, slow_disk: SlowDisk
) -> None:
    kv = kit.kv()
    store = open_store(disk_bytes=MIB, queue_bytes=kv.nbytes, store={"sync": slow_disk.sync})
    store.put(namespace, "under way", kv)
    assert slow_disk.reached.wait(60)
    assert store.put(namespace, "waits", kv).accepted
    assert store.put(namespace, "too much", kv).reason is StoreDecline.QUEUE_FULL


def test_a_donor_that_is_held_or_coming_is_refused_and_not_replaced(
    kit: Any, open_store: OpenStore, namespace: Namespace, slow_disk: SlowDisk
) -> None:
    store = open_store(disk_bytes=MIB, store={"sync": slow_disk.sync})
    store.put(namespace, "a", kit.kv(1))
    assert slow_disk.reached.wait(60)
    assert store.put(namespace, "a", kit.kv(2)).reason is StoreDecline.DUPLICATE_DONOR
    slow_disk.go_on.set()
    assert store.flush()
    assert store.put(namespace, "a", kit.kv(3)).reason is StoreDecline.DUPLICATE_DONOR
    assert store.stats().declines == {StoreDecline.DUPLICATE_DONOR: 2}
    assert kit.same(kit.read(store, namespace, "a"), kit.kv(1))

    assert store.forget(namespace, "a")
    assert store.put(namespace, "a", kit.kv(4)).accepted
    assert store.flush()
    assert kit.same(kit.read(store, namespace, "a"), kit.kv(4))


def test_a_donor_forgotten_on_its_way_never_arrives(
    kit: Any, open_store: OpenStore, namespace: Namespace, slow_disk: SlowDisk, tmp_path: Path
) -> None:
    store = open_store(disk_bytes=MIB, store={"sync": slow_disk.sync})
    durable: list[str] = []
    store.put(namespace, "a", kit.kv(1), on_durable=durable.append)
    assert slow_disk.reached.wait(60)
    assert store.forget(namespace, "a")
    assert not store.forget(namespace, "a")
    assert store.put(namespace, "a", kit.kv(2), on_durable=durable.append).accepted, "a new one of the same name"
    slow_disk.go_on.set()
    assert store.flush()
    assert durable == ["a"]
    assert kit.same(kit.read(store, namespace, "a"), kit.kv(2))
    assert len(list((tmp_path / "kv" / "donors").iterdir())) == 2, "no files of the forgotten one"
    assert store.stats().declines == {StoreDecline.FORGOTTEN: 1}


def test_close_lets_a_write_end_and_drops_what_waits(
    kit: Any, open_store: OpenStore, namespace: Namespace, slow_disk: SlowDisk
) -> None:
    store = open_store(disk_bytes=MIB, store={"sync": slow_disk.sync})
    for name in ("under way", "waiting"):
        store.put(namespace, name, kit.kv())
    assert slow_disk.reached.wait(60)
    assert not store.close(0.01), "says that it could not end in time"
    with pytest.raises(StoreDirectoryError, match="in use"):
        open_store(disk_bytes=MIB)
    slow_disk.go_on.set()
    assert store.close()
    assert store.stats().declines == {StoreDecline.CLOSED: 1}
    assert [donor.donor_id for donor in open_store(disk_bytes=MIB).recover()] == ["under way"]


def test_a_stream_cannot_wait_for_a_disk_read_that_is_under_way(
    kit: Any, open_store: OpenStore, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(disk_bytes=MIB)
    store.put(namespace, "a", kit.kv(1))
    assert store.flush()
    handle = store.acquire(namespace, "a")
    assert handle is not None
    (data,) = (tmp_path / "kv" / "donors").glob("*.safetensors")
    data.unlink()
    answers, open_at_once = threading.Event(), disk_tier.open_file

    def open_late(path: Path) -> int:
        answers.wait()
        return open_at_once(path)

    monkeypatch.setattr(disk_tier, "open_file", open_late)
    transfer = store.load(handle)
    assert not transfer.done()
    assert not transfer.issued
    with pytest.raises(TransferPendingError, match="poll"):
        transfer.wait_on_stream()
    with pytest.raises(TimeoutError):
        transfer.result(0.01)
    assert store.put(namespace, "b", kit.kv(2)).accepted, "writers do not wait for readers"
    answers.set()
    with pytest.raises(Exception, match="corrupt"):
        transfer.result(30)
    handle.release()


def test_a_callback_that_fails_is_counted_and_costs_nothing_else(
    kit: Any, open_store: OpenStore, namespace: Namespace
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the owner's fault")

    room = 2 * kit.kv().nbytes
    store = open_store(device_bytes=room, store={"on_gone": broken})
    for number in range(3):
        store.put(namespace, str(number), kit.kv(number), on_durable=broken)
        assert store.flush()
    assert store.stats().failed_callbacks == 4
    assert store.stats().gone == {Gone.EVICTED: 1}
    assert kit.same(kit.read(store, namespace, "2"), kit.kv(2))


def test_a_donor_whose_capture_breaks_is_counted_and_may_come_again(
    kit: Any, open_store: OpenStore, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise LookupError("a fault of the store itself")

    store = open_store(host_bytes=MIB)
    host = store._tiers[Tier.HOST]
    host.prepare, whole = broken, host.prepare
    assert store.put(namespace, "a", kit.kv(1)).accepted
    assert store.flush()
    assert (store.stats().pending, store.stats().declines) == (0, {StoreDecline.COPY_FAILED: 1})
    assert "a fault of the store itself" in caplog.text
    host.prepare = whole
    assert store.put(namespace, "a", kit.kv(2)).accepted
    assert store.flush()
    assert kit.same(kit.read(store, namespace, "a"), kit.kv(2))


def test_a_victim_whose_demotion_breaks_is_not_left_pinned(
    kit: Any, open_store: OpenStore, namespace: Namespace
) -> None:
    def broken() -> None:
        raise LookupError("a fault of the store itself")

    store = open_store(device_bytes=kit.kv().nbytes, host_bytes=MIB)
    store._tiers[Tier.HOST].prepare = broken
    for name in "ab":
        assert store.put(namespace, name, kit.kv(ord(name))).accepted
        assert store.flush()
    assert store.tier_of(namespace, "b") is Tier.DEVICE
    assert store.stats().gone == {Gone.EVICTED: 1}
    assert store.stats().tiers[Tier.DEVICE].pinned_donors == 0


def test_a_device_that_cannot_say_what_has_landed_is_counted_and_costs_that_memory_only(
    kit: Any, open_store: OpenStore, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    class LostEvent:
        def query(self) -> bool:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        synchronize = query

    store = open_store(host_bytes=MIB)
    for name in "ab":
        store.put(namespace, name, kit.kv(ord(name)))
    assert store.flush()
    copy = store._holdings.pin(DonorKey(namespace.digest, "a"))
    assert isinstance(copy, Copy)
    store._loader._in_flight.append((LostEvent(), copy))  # As a load to a CUDA device leaves it.
    assert store.flush()
    for _ in range(2):
        assert store.stats().failed_loads == {StoreDecline.COPY_FAILED: 1}, "once, and no exception"
        assert kit.same(kit.read(store, namespace, "b"), kit.kv(ord("b")))
    assert "illegal memory access" in caplog.text
    assert store.stats().tiers[Tier.HOST].pinned_donors == 1, "what may still be read is not lent again"


def test_the_owner_may_use_the_store_while_it_is_told(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    seen: list[object] = []

    def on_gone(key: DonorKey, reason: Gone) -> None:
        handle = store.acquire(namespace, key.donor_id)
        seen.extend([handle, store.contains(namespace, "a"), store.forget(namespace, "a"), store.stats().donors])

    store = open_store(device_bytes=kit.kv().nbytes, store={"on_gone": on_gone})
    for name in "ab":
        store.put(namespace, name, kit.kv(ord(name)))
        assert store.flush()
    assert seen == [None, False, False, 0]
    assert store.contains(namespace, "b")
