"""Many threads on one store: contents stay right, nothing is lost, nothing is left pinned."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from semblend_core import Namespace
from semblend_core.kv.store import DonorStore

OpenStore = Callable[..., DonorStore]


def test_concurrent_use(kit: Any, open_store: OpenStore, namespace: Namespace) -> None:
    size = kit.kv().nbytes
    store = open_store(device_bytes=3 * size, host_bytes=8 * 7168, disk_bytes=20 * size, promote=True, queue_depth=64)
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        try:
            for _ in range(150):
                number = dice.randrange(24)
                action = dice.random()
                if action < 0.4:
                    store.put(namespace, str(number), kit.kv(number))
                elif action < 0.5:
                    store.forget(namespace, str(number))
                else:
                    handle = store.acquire(namespace, str(number))
                    if handle is not None:
                        with handle:
                            start = dice.randrange(40)
                            (part,) = store.load(handle, [(start, 40)]).result(60)
                            expected = kit.kv(number)
                            assert kit.same(part, type(part)(expected.keys[:, start:], expected.values[:, start:]))
                store.check_integrity()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert faults == []
    assert store.flush()
    stats = store.stats()
    assert sum(tier.pinned_donors for tier in stats.tiers.values()) == 0
    assert stats.failed_loads == {}
    assert stats.quarantined == {}
    assert all(tier.stored > 0 for tier in stats.tiers.values()), "every tier took part"
    for number in range(24):
        store.forget(namespace, str(number))
    assert store.flush()
    assert all(tier.bytes == 0 for tier in store.stats().tiers.values())
