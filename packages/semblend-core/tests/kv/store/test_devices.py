"""The engine's own device: the same bytes, through streams and events where it has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from semblend_core import Namespace
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store import DonorStore, StoreOptions, Tier

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
MIB = 1024**2
new_stream: Callable[[], Any] = torch.cuda.Stream
OPTIONS = {Tier.DEVICE: "device_bytes", Tier.HOST: "host_bytes", Tier.DISK: "disk_bytes"}


def to(kv: DonorKv, device: str) -> DonorKv:
    return DonorKv(kv.keys.to(device), None if kv.values is None else kv.values.to(device), kv.first_position)


@needs_cuda
@pytest.mark.parametrize("layer_by_layer", [True, False])
@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST, Tier.DISK])
def test_a_stream_that_waits_reads_the_right_bytes(
    kit: Any, namespace: Namespace, tmp_path: Path, tier: Tier, layer_by_layer: bool
) -> None:
    chosen: dict[str, Any] = {"host_bytes": 0, "disk_path": tmp_path, OPTIONS[tier]: 64 * MIB}
    kv = kit.kv(1, tokens=20_000)
    with DonorStore(StoreOptions(**chosen)) as store:
        assert store.put(namespace, "a", to(kv, "cuda")).accepted
        assert store.flush()
        handle = store.acquire(namespace, "a")
        assert handle is not None
        with handle:
            transfer = store.load(handle, [(5, 15_000), (0, 3)])
            if tier is Tier.DISK:
                transfer.result(60)
            stream = new_stream()
            with torch.cuda.stream(stream):
                for layer in range(3) if layer_by_layer else [None]:
                    transfer.wait_on_stream(stream, layer)
                copies = [(part.keys.clone(), part.values.clone()) for part in transfer.parts]  # type: ignore[union-attr]
            stream.synchronize()
            assert transfer.ready()
        for (keys, values), (start, stop) in zip(copies, [(5, 15_000), (0, 3)], strict=True):
            assert kit.same(
                DonorKv(keys.cpu(), values.cpu()), DonorKv(kv.keys[:, start:stop], kv.values[:, start:stop])
            )
        assert store.stats().tiers[tier].pinned_donors == 0
        store.check_integrity()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_demotion_and_promotion_leave_the_bytes_alone(
    kit: Any, namespace: Namespace, tmp_path: Path, device: str
) -> None:
    size = kit.kv().nbytes
    options = StoreOptions(
        device_bytes=2 * size, host_bytes=64 * 1024, disk_bytes=64 * MIB, disk_path=tmp_path, promote=True
    )
    with DonorStore(options, device=device) as store:
        for number in range(30):
            store.put(namespace, str(number), to(kit.kv(number), device))
            assert store.flush()
            store.check_integrity()
        for number in [number for number in range(30) for _ in range(3)]:
            part = kit.read(store, namespace, str(number))
            assert kit.same(to(part, "cpu"), kit.kv(number))
            assert store.flush()
            store.check_integrity()
        stats = store.stats()
        assert all(stats.tiers[tier].hits for tier in stats.tiers), "a tier took no part"
        assert stats.donors == 30


@needs_cuda
def test_a_store_that_was_just_opened_breaks_no_capture() -> None:
    """It is opened, then an engine captures CUDA graphs. Memory that is pinned meanwhile breaks the capture."""
    graph, numbers = torch.cuda.CUDAGraph(), torch.zeros(16, device="cuda")
    with DonorStore(StoreOptions(host_bytes=4096 * MIB)) as store:
        with torch.cuda.graph(graph):
            for _ in range(200):
                time.sleep(0.005)
                numbers += 1
        graph.replay()
        assert numbers.cpu().tolist() == [200.0] * 16
        store.check_integrity()
