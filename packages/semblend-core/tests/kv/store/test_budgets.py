"""Budgets hold, pinned donors stay, and what leaves a tier goes down before it goes away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from semblend_core import Namespace
from semblend_core.kv.store import DonorKey, DonorStore, Gone, StoreDecline, Tier
from semblend_core.kv.store.kv_spec import KvSpec
from semblend_core.kv.store.memory_tiers import HostTier
from semblend_core.kv.store.tier import Source
from semblend_core.kv.store.vocabulary import Miss

OpenStore = Callable[..., DonorStore]
MIB = 1024**2


def fill(kit: Any, store: DonorStore, namespace: Namespace, *names: str) -> None:
    for name in names:
        assert store.put(namespace, name, kit.kv(sum(name.encode()))).accepted
        assert store.flush()
        store.check_integrity()


def tiers(store: DonorStore, namespace: Namespace, names: str) -> list[Tier | None]:
    return [store.tier_of(namespace, name) for name in names]


@pytest.mark.parametrize(("eviction", "left"), [("lru", "acd"), ("lfu", "abd")])
def test_the_policy_chooses_who_goes(
    kit: Any, open_store: OpenStore, namespace: Namespace, eviction: str, left: str
) -> None:
    gone: list[DonorKey] = []
    store = open_store(
        device_bytes=3 * kit.kv().nbytes,
        eviction=eviction,
        store={"on_gone": lambda key, reason: gone.append(key)},
    )
    fill(kit, store, namespace, "a", "b", "c")
    for name in "bbaac" if eviction == "lfu" else "bca":
        kit.read(store, namespace, name)
    fill(kit, store, namespace, "d")
    assert [name for name in "abcd" if store.contains(namespace, name)] == list(left)
    assert [key.donor_id for key in gone] == [*(set("abcd") - set(left))]
    assert gone[0].namespace == namespace.digest
    stats = store.stats()
    assert (stats.tiers[Tier.DEVICE].evictions, stats.tiers[Tier.DEVICE].demotions) == (1, 0)
    assert stats.gone == {Gone.EVICTED: 1}
    assert store.acquire(namespace, gone[0].donor_id) is None
    assert store.stats().misses == {Miss.UNKNOWN: 1}


def test_a_donor_that_is_cheap_to_compute_goes_first(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    store = open_store(device_bytes=2 * kit.kv().nbytes, eviction="gdsf")
    for name, saved_ms in (("dear", 50.0), ("cheap", 5.0), ("new", 50.0)):
        assert store.put(namespace, name, kit.kv(), saved_ms=saved_ms).accepted
        assert store.flush()
    assert [name for name in ("dear", "cheap", "new") if store.contains(namespace, name)] == ["dear", "new"]


def test_a_donor_that_a_newer_one_holds_goes_first(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    store = open_store(device_bytes=3 * kit.kv().nbytes, eviction="priced_lru")
    fill(kit, store, namespace, "a", "b", "c")
    store.note_copied(namespace, "b", kit.kv().tokens)
    store.note_copied(namespace, "unknown", 5)
    fill(kit, store, namespace, "d")
    assert [name for name in "abcd" if store.contains(namespace, name)] == ["a", "c", "d"]


def test_full_tiers_send_their_donors_down(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    size = kit.kv().nbytes
    store = open_store(device_bytes=size, host_bytes=3 * 1536 * 2, disk_bytes=3 * 2 * size)
    fill(kit, store, namespace, *"abcdef")
    assert tiers(store, namespace, "f") == [Tier.DEVICE]
    places = tiers(store, namespace, "abcdef")
    assert places == sorted(places, key=[*Tier, None].index, reverse=True), "the oldest are the farthest"
    assert set(places) == set(store.options.tiers)
    for name in "abcdef":
        assert kit.same(kit.read(store, namespace, name), kit.kv(sum(name.encode())))
    stats = store.stats()
    assert stats.tiers[Tier.DEVICE].demotions == 5
    assert stats.gone == {}


def test_what_no_lower_tier_takes_is_dropped(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    size = kit.kv().nbytes
    store = open_store(device_bytes=size, disk_bytes=size // 2)
    fill(kit, store, namespace, "a", "b")
    assert tiers(store, namespace, "ab") == [None, Tier.DEVICE]
    assert store.stats().gone == {Gone.EVICTED: 1}


def test_a_pinned_donor_stays_and_the_newcomer_is_declined(
    kit: Any, open_store: OpenStore, namespace: Namespace
) -> None:
    store = open_store(device_bytes=kit.kv().nbytes)
    fill(kit, store, namespace, "a")
    with contextlib.suppress(KeyError), store.acquire(namespace, "a") or pytest.fail("not there"):
        store.put(namespace, "b", kit.kv(2))
        assert store.flush()
        assert tiers(store, namespace, "ab") == [Tier.DEVICE, None]
        assert store.stats().declines == {StoreDecline.NO_ROOM: 1}
        assert store.stats().tiers[Tier.DEVICE].pinned_donors == 1
        raise KeyError("the pin ends with the block, however it ends")
    assert store.stats().tiers[Tier.DEVICE].pinned_donors == 0
    fill(kit, store, namespace, "b")
    assert tiers(store, namespace, "ab") == [None, Tier.DEVICE]


def test_the_oldest_stays_while_it_is_pinned(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    store = open_store(device_bytes=3 * kit.kv().nbytes)
    fill(kit, store, namespace, "a", "b", "c")
    with store.acquire(namespace, "a") or pytest.fail("not there") as handle:
        for name in "cbcb":  # "a" is the least recently used now.
            kit.read(store, namespace, name)
        fill(kit, store, namespace, "d")
        assert tiers(store, namespace, "abcd") == [Tier.DEVICE, Tier.DEVICE, None, Tier.DEVICE]
        assert kit.same(store.load(handle).result(30)[0], kit.kv(ord("a")))


def test_a_pinned_donor_sends_the_newcomer_down(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    store = open_store(device_bytes=kit.kv().nbytes, host_bytes=MIB)
    fill(kit, store, namespace, "a")
    with store.acquire(namespace, "a") or pytest.fail("not there"):
        fill(kit, store, namespace, "b")
        assert tiers(store, namespace, "ab") == [Tier.DEVICE, Tier.HOST]
    assert store.stats().tiers[Tier.DEVICE].declines == {StoreDecline.NO_ROOM: 1}
    assert store.stats().declines == {}, "it was kept, only not there"


def test_a_slab_that_another_thread_pins_meanwhile_is_room(
    kit: Any, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = HostTier(MIB, MIB, torch.device("cpu"))
    take = tier.pool.take

    def take_and_be_overtaken(sizes: list[int]) -> Any:
        found = take(sizes)
        tier.pool.grow()
        return found

    monkeypatch.setattr(tier.pool, "take", take_and_be_overtaken)
    source = Source(DonorKey(namespace.digest, "a"), KvSpec.of(kit.kv()), None, lambda layers, side: None, None)
    assert len(tier.write(source).layers) == kit.kv().layers


def test_what_cannot_fit_beside_the_pinned_costs_nobody_his_place(
    kit: Any, open_store: OpenStore, namespace: Namespace
) -> None:
    store = open_store(device_bytes=3 * kit.kv().nbytes)
    fill(kit, store, namespace, "a", "b")
    with store.acquire(namespace, "a") or pytest.fail("not there"):
        store.put(namespace, "c", kit.kv(3, tokens=120))
        assert store.flush()
    assert tiers(store, namespace, "abc") == [Tier.DEVICE, Tier.DEVICE, None]


@pytest.mark.parametrize("tier", ["device_bytes", "host_bytes", "disk_bytes"])
def test_a_forgotten_donor_is_freed_when_its_reader_is_done(
    kit: Any, open_store: OpenStore, namespace: Namespace, tier: str
) -> None:
    store = open_store(**{tier: MIB})
    fill(kit, store, namespace, "a")
    handle = store.acquire(namespace, "a")
    assert handle is not None
    assert store.forget(namespace, "a")
    assert not store.contains(namespace, "a")
    assert store.flush()
    held = store.stats().tiers[handle.tier]
    assert (held.donors, held.bytes > 0) == (0, True), "invisible, and still charged for"
    assert kit.same(store.load(handle).result(30)[0], kit.kv(ord("a")))
    handle.release()
    assert store.flush()
    assert store.stats().tiers[handle.tier].bytes == 0


def test_too_large_and_invalid_donors_are_declined(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    store = open_store(device_bytes=1000, host_bytes=MIB, host_slab_bytes=4096)
    assert store.put(namespace, "layer larger than a slab", kit.kv(tokens=400)).reason is StoreDecline.TOO_LARGE
    assert store.put(namespace, "", kit.kv()).reason is StoreDecline.INVALID_KV
    assert store.put(namespace, "no tokens", kit.kv(tokens=0)).reason is StoreDecline.INVALID_KV
    assert store.put(namespace, "ids", kit.kv(), token_ids=[1, 2]).reason is StoreDecline.INVALID_KV
    assert store.put(namespace, "ids", kit.kv(), token_ids=[-1] * 40).reason is StoreDecline.INVALID_KV
    wrong = kit.kv()
    wrong = type(wrong)(wrong.keys.double(), wrong.values.double())
    assert store.put(namespace, "type", wrong).reason is StoreDecline.INVALID_KV
    assert store.stats().declines == {StoreDecline.TOO_LARGE: 1, StoreDecline.INVALID_KV: 5}


def test_free_memory_in_small_pieces_costs_one_donor_more(
    kit: Any, open_store: OpenStore, namespace: Namespace
) -> None:
    # A layer of 40 tokens takes 2,304 bytes (1,280 and 1,024), one of 80 tokens 4,608: slabs of 8 KiB take 3 or 1.
    store = open_store(host_bytes=32768, host_slab_bytes=8192)
    fill(kit, store, namespace, "a", "b", "c")
    assert store.forget(namespace, "b")
    store.put(namespace, "large", kit.kv(7, tokens=80))
    assert store.flush()
    store.check_integrity()
    assert kit.same(kit.read(store, namespace, "large"), kit.kv(7, tokens=80))
    assert store.stats().tiers[Tier.HOST].evictions >= 1


def test_a_donor_whose_layers_never_fit_into_the_slabs_costs_nobody_his_place(
    kit: Any, open_store: OpenStore, namespace: Namespace
) -> None:
    # As above: a layer of 80 tokens fits into a slab and three into the budget, but two slabs take only one each.
    large = kit.kv(7, tokens=80)
    store = open_store(host_bytes=16384, host_slab_bytes=8192)
    fill(kit, store, namespace, "a", "b")
    assert store.put(namespace, "large", large).reason is StoreDecline.TOO_LARGE
    assert store.flush()
    assert tiers(store, namespace, "ab") == [Tier.HOST, Tier.HOST]
    assert store.close()

    store = open_store(host_bytes=16384, host_slab_bytes=8192, disk_bytes=MIB, promote=True)
    fill(kit, store, namespace, "a", "b")
    assert store.put(namespace, "large", large).accepted
    assert store.flush()
    assert kit.same(kit.read(store, namespace, "large"), large)
    assert store.flush(), "nor is it promoted to where it cannot lie"
    assert tiers(store, namespace, "ab") == [Tier.HOST, Tier.HOST]
    assert store.tier_of(namespace, "large") is Tier.DISK
    assert store.stats().tiers[Tier.HOST].declines == {}


def test_a_used_donor_is_promoted_and_its_slower_copy_saves_the_way_back(
    kit: Any, open_store: OpenStore, namespace: Namespace
) -> None:
    store = open_store(device_bytes=kit.kv().nbytes, host_bytes=0, disk_bytes=MIB, promote=True)
    fill(kit, store, namespace, "a", "b")
    assert tiers(store, namespace, "ab") == [Tier.DISK, Tier.DEVICE]
    assert kit.same(kit.read(store, namespace, "a"), kit.kv(ord("a")))
    assert store.flush()
    assert tiers(store, namespace, "ab") == [Tier.DEVICE, Tier.DISK]
    assert kit.same(kit.read(store, namespace, "a"), kit.kv(ord("a")))
    kit.read(store, namespace, "b")
    assert store.flush()
    stats = store.stats()
    assert stats.tiers[Tier.DEVICE].promotions == 2
    assert stats.tiers[Tier.DISK].stored == 2, "each was written once"
    assert stats.gone == {}


def test_a_donor_that_finds_no_room_after_all_is_reported(
    kit: Any, open_store: OpenStore, namespace: Namespace
) -> None:
    store = open_store(device_bytes=kit.kv().nbytes)
    fill(kit, store, namespace, "a")
    held = store.acquire(namespace, "a")
    assert held is not None
    told: list[object] = []
    accepted = store.put(
        namespace, "b", kit.kv(2), on_durable=told.append, on_declined=lambda *what: told.append(what)
    ).accepted
    assert accepted
    assert store.flush()
    assert told == [("b", StoreDecline.NO_ROOM)]
    held.release()


def test_room_is_asked_for_before_a_donor_is_copied(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    size = kit.kv().nbytes
    store = open_store(device_bytes=size)
    assert store.has_room_for(size)
    assert not store.has_room_for(size + 1)
    store.close()
    assert not store.has_room_for(size)
