"""LMCache as a tier, in the memory of this process: what is stored comes back bit by bit, or is said to be gone."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lmcache_donors import keep, load, make_kv, namespace_of, same_bytes

from semblend_core import DeclineReason, Span
from semblend_core.kv import DonorStore, StoreDirectoryError, StoreOptions
from semblend_core.kv.fetching import fetch_donor
from semblend_core.kv.store import Tier, TransferFailedError
from semblend_core.kv.store.lane import Job
from semblend_core.kv.store.options import StoreOptionError

MIB = 1024**2
OpenStore = Callable[..., DonorStore]


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_every_type_is_bit_exact(open_store: OpenStore, dtype: torch.dtype, values: bool) -> None:
    store, kv = open_store(), make_kv(dtype=dtype, values=values)
    assert keep(store, "d", kv) == []
    assert store.tier_of(namespace_of(), "d") is Tier.LMCACHE
    assert same_bytes(load(store, "d", [(0, 700)])[0], kv)
    store.check_integrity()


def test_lmcache_may_be_opened_before_the_first_donor(open_store: OpenStore) -> None:
    store, kv = open_store(), make_kv()
    store.prepare(kv.nbytes // kv.tokens)
    assert store.flush()
    opened = store._lmcache._client  # type: ignore[union-attr]
    assert opened is not None
    keep(store, "d", kv)
    assert same_bytes(load(store, "d", [(0, 700)])[0], kv)
    assert store._lmcache._client is opened  # type: ignore[union-attr]


def test_ranges_over_the_ends_of_chunks_come_one_by_one(open_store: OpenStore) -> None:
    store, kv = open_store(), make_kv()
    keep(store, "d", kv)
    wanted = [(0, 1), (250, 260), (511, 513), (699, 700), (100, 600)]
    for part, (start, stop) in zip(load(store, "d", wanted), wanted, strict=True):
        assert same_bytes(part, kv, start, stop)


def test_another_salt_rank_or_donor_finds_nothing(open_store: OpenStore) -> None:
    store = open_store()
    keep(store, "d", make_kv(), salt="ours")
    for namespace, donor in ((namespace_of("theirs"), "d"), (namespace_of(), "d"), (namespace_of("ours", 1), "d")):
        assert store.acquire(namespace, donor) is None
    assert store.acquire(namespace_of("ours"), "e") is None


def test_what_lies_under_another_salts_key_is_not_found_by_its_tokens_either(open_store: OpenStore) -> None:
    store, kv = open_store(), make_kv()
    keep(store, "d", kv, salt="ours")
    tier = store._lmcache
    assert tier is not None
    held = store._holdings._entries[next(iter(store._holdings._entries))].copies[Tier.LMCACHE].storage
    client, key = tier._client, held.key
    assert client is not None
    assert client.find(key) == 700
    theirs = type(key)(namespace_of("theirs").digest, key.donor, key.token_ids)
    assert client.find(theirs) == 0


def test_a_full_host_tier_hands_on_to_lmcache(open_store: OpenStore) -> None:
    store = open_store(host_bytes=MIB // 2, host_slab_bytes=MIB // 2)
    kept = {name: make_kv(seed) for seed, name in enumerate("abcdef")}
    for name, kv in kept.items():
        assert keep(store, name, kv) == []
    tiers = {store.tier_of(namespace_of(), name) for name in kept}
    assert tiers == {Tier.HOST, Tier.LMCACHE}
    for name, kv in kept.items():
        assert same_bytes(load(store, name, [(0, 700)])[0], kv)
    store.check_integrity()


def test_a_used_donor_may_be_copied_up(open_store: OpenStore) -> None:
    store, kv = open_store(host_bytes=4 * MIB, host_slab_bytes=4 * MIB, promote=True), make_kv()
    store.put(namespace_of(), "d", kv, token_ids=range(700), tier=Tier.LMCACHE)
    assert store.flush()
    assert store.tier_of(namespace_of(), "d") is Tier.LMCACHE
    load(store, "d", [(0, 700)])
    assert store.flush()
    assert store.tier_of(namespace_of(), "d") is Tier.HOST
    assert same_bytes(load(store, "d", [(5, 650)])[0], kv, 5, 650)


def test_the_budget_holds_and_the_oldest_goes(open_store: OpenStore) -> None:
    store = open_store(lmcache_bytes=300_000)
    for name in "abcde":
        assert keep(store, name, make_kv()) == []
    told = store.stats().tiers[Tier.LMCACHE]
    assert (told.donors, told.evictions) == (2, 3)
    assert told.bytes <= 300_000
    assert store.acquire(namespace_of(), "a") is None
    store.check_integrity()


def test_what_lmcache_has_let_go_is_a_counted_failure_and_then_unknown(open_store: OpenStore) -> None:
    store = open_store()
    keep(store, "d", make_kv())
    client = store._lmcache._client  # type: ignore[union-attr]
    client._engine.clear()  # As another user of it may.
    with pytest.raises(TransferFailedError, match="evicted_elsewhere"):
        load(store, "d", [(0, 10)])
    assert store.acquire(namespace_of(), "d") is None
    assert dict(store.stats().failed_loads) == {"evicted_elsewhere": 1}
    assert keep(store, "d", make_kv()) == []
    assert same_bytes(load(store, "d", [(0, 700)])[0], make_kv())
    assert store.flush()
    store.check_integrity()


def test_damaged_bytes_are_never_handed_out(open_store: OpenStore) -> None:
    store = open_store()
    keep(store, "d", make_kv())
    backend = store._lmcache._client._engine.storage_manager.storage_backends["LocalCPUBackend"]  # type: ignore
    next(iter(backend.hot_cache.values())).tensor.view(-1)[100] ^= 1
    with pytest.raises(TransferFailedError, match="corrupt"):
        load(store, "d", [(0, 700)])
    assert store.acquire(namespace_of(), "d") is None
    assert dict(store.stats().quarantined) == {"checksum": 1}


def test_a_purge_leaves_nothing(open_store: OpenStore) -> None:
    store = open_store()
    keep(store, "d", make_kv(), salt="ours")
    keep(store, "e", make_kv(1), salt="theirs")
    report = store.purge(namespace_of("ours").salt_digest)
    assert report.stored == 1
    backend = store._lmcache._client._engine.storage_manager.storage_backends["LocalCPUBackend"]  # type: ignore
    owners = {dict(key.tags)["ns"] for key in backend.hot_cache}
    assert owners == {namespace_of("theirs").digest}


def test_a_request_that_is_held_never_waits_for_lmcache(open_store: OpenStore) -> None:
    store, may_read = open_store(), threading.Event()
    keep(store, "d", make_kv())
    store._load_lane.submit(Job(may_read.wait))  # As a server that takes its time.
    fetch = fetch_donor(store, namespace_of(), "d", [Span(0, "d", 0, 100)])
    assert fetch is not None
    assert fetch.arrive() is DeclineReason.DONOR_ON_DISK
    may_read.set()


def test_donors_without_tokens_are_declined(open_store: OpenStore) -> None:
    store = open_store()
    declined: list[str] = []
    store.put(namespace_of(), "d", make_kv(), on_declined=lambda _, reason: declined.append(str(reason)))
    assert store.flush()
    assert declined == ["invalid_kv"]


def test_the_process_around_it_is_left_as_it_was(open_store: OpenStore) -> None:
    from vllm.v1.core import kv_cache_utils

    before = multiprocessing.get_start_method(allow_none=True), getattr(kv_cache_utils, "NONE_HASH", None)
    keep(open_store(), "d", make_kv())
    after = multiprocessing.get_start_method(allow_none=True), getattr(kv_cache_utils, "NONE_HASH", None)
    assert before[1] == after[1]
    assert before[0] in (None, after[0])


def test_tenants_that_must_stay_in_memory_are_not_given_to_lmcache(open_store: OpenStore) -> None:
    store = open_store(memory_only=(namespace_of("ours").salt_digest,))
    result = store.put(namespace_of("ours"), "d", make_kv(), token_ids=range(700))
    assert str(result.reason) == "too_large"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:80", "redis://", "redis://host", "lm:/127.0.0.1:1", "localhost:6379"]
)
def test_a_wrong_server_is_refused(url: str) -> None:
    with pytest.raises(StoreOptionError, match="SEMBLEND_STORE_LMCACHE_URL"):
        StoreOptions(lmcache_bytes=1, lmcache_url=url)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreDirectoryError, match="SEMBLEND_STORE_LMCACHE_PATH"):
        DonorStore(StoreOptions(lmcache_bytes=1, lmcache_path=tmp_path / "file"), device="cpu")
