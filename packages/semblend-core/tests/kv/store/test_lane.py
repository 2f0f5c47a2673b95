"""What a store's background thread does while nobody asks it for anything."""

from __future__ import annotations

import threading

from semblend_core.kv.store import DonorStore, StoreOptions
from semblend_core.kv.store.lane import Job, Lane
from semblend_core.kv.store.memory_tiers import HostTier
from semblend_core.kv.store.vocabulary import Tier


def test_nothing_is_done_ahead_before_the_first_job() -> None:
    """An engine that starts may be capturing CUDA graphs, which memory that is pinned meanwhile would break."""
    ahead = threading.Event()

    def work_ahead() -> bool:
        ahead.set()
        return False

    lane = Lane("test", 4, 1024, work_ahead)
    assert not ahead.wait(0.2)
    lane.submit(Job(lambda: None))
    assert ahead.wait(30)
    lane.stop()
    assert lane.join(30)


def test_a_store_holds_no_host_memory_before_its_first_donor() -> None:
    store = DonorStore(StoreOptions(device_bytes=0, host_bytes=2**20), device="cpu")
    host = store._tiers[Tier.HOST]
    assert isinstance(host, HostTier)
    assert not store._lanes[Tier.HOST]._begun
    assert host.pool.free_bytes == 0
    store.close()
