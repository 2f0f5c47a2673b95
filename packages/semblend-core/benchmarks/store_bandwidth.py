"""How fast donors travel between the store's tiers on a CUDA host.

    PYTHONPATH=packages/semblend-core/src python packages/semblend-core/benchmarks/store_bandwidth.py [--folder /nvme]

Donors of Qwen2.5-7B's shape (28 layers, 4 KV heads, 128 numbers, bf16) with 8,192 and 32,768 tokens:
raw      one cudaMemcpyAsync of the same bytes from pinned memory: what the bus gives
load     host tier -> device through ``DonorStore.load``, timed with CUDA events from its call to its last layer
capture  device -> host tier through ``put``, from the call until the donor is visible
disk     disk tier -> device through ``load``, from the call until all bytes have landed
each alone and with a stream of matrix products running beside it. Medians. The bar: load >= 0.85 of raw.
Everything that is loaded is compared with what was put. Ends with status 1 below the bar or on a wrong byte.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from semblend_core import Namespace
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store import DonorStore, StoreOptions

LAYERS, KV_HEADS, DIM = 28, 4, 128
BAR = 0.85
new_event: Callable[..., Any] = torch.cuda.Event
new_stream: Callable[..., Any] = torch.cuda.Stream
GIB = 1024**3
NAMESPACE = Namespace(
    model="Qwen2.5-7B",
    revision="shape only",
    tokenizer="none",
    dtype="bfloat16",
    kv_layout="nhd",
    block_size=16,
    adapter=None,
    salt="tenant",
)


def donor(tokens: int) -> DonorKv:
    shape = (LAYERS, tokens, KV_HEADS, DIM)
    keys, values = (torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in range(2))
    return DonorKv(keys, values)


class Compute:
    """Matrix products on a stream of their own, issued without pause while ``running`` is open."""

    def __init__(self) -> None:
        self._stream = new_stream()
        self._left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty_like(self._left)

    @contextmanager
    def running(self, on: bool) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._issue, args=(stop,))
        if on:
            thread.start()
            time.sleep(0.05)
        try:
            yield
        finally:
            stop.set()
            if on:
                thread.join()
            torch.cuda.synchronize()

    def _issue(self, stop: threading.Event) -> None:
        with torch.cuda.stream(self._stream):
            while not stop.is_set():
                for _ in range(8):
                    torch.mm(self._left, self._left, out=self._out)
                # A few at a time: an endless queue would outlive the measurement.
                done = new_event(blocking=True)
                done.record()
                done.synchronize()


def median_seconds(measure: Callable[[], float], repeats: int) -> float:
    measure()  # Warms up the allocator and the copy engine.
    return statistics.median(measure() for _ in range(repeats))


def raw_copy(nbytes: int) -> Callable[[], float]:
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    stream = new_stream()

    def measure() -> float:
        start, end = (new_event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            start.record()
            target.copy_(source, non_blocking=True)
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return measure


def store_load(store: DonorStore, name: str) -> Callable[[], float]:
    consumer = new_stream()

    def measure() -> float:
        handle = store.acquire(NAMESPACE, name)
        assert handle is not None
        with handle, torch.cuda.stream(consumer):
            start, end = (new_event(enable_timing=True) for _ in range(2))
            start.record()
            transfer = store.load(handle)
            transfer.wait_on_stream(consumer)
            end.record()
            end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return measure


def first_layer(store: DonorStore, name: str) -> Callable[[], float]:
    """Until layer 0 may be used."""
    consumer = new_stream()

    def measure() -> float:
        handle = store.acquire(NAMESPACE, name)
        assert handle is not None
        with handle, torch.cuda.stream(consumer):
            start, end = (new_event(enable_timing=True) for _ in range(2))
            start.record()
            transfer = store.load(handle)
            transfer.wait_on_stream(consumer, layer=0)
            end.record()
            end.synchronize()
            transfer.result()
        return float(start.elapsed_time(end)) / 1e3

    return measure


def call_time(store: DonorStore, name: str) -> Callable[[], float]:
    """What ``load`` costs the thread that calls it."""

    def measure() -> float:
        handle = store.acquire(NAMESPACE, name)
        assert handle is not None
        with handle:
            started = time.perf_counter()
            transfer = store.load(handle)
            taken = time.perf_counter() - started
            transfer.result()
        return taken

    return measure


def store_capture(store: DonorStore, kv: DonorKv) -> Callable[[], float]:
    def measure() -> float:
        store.forget(NAMESPACE, "captured")
        visible = threading.Event()
        torch.cuda.synchronize()
        started = time.perf_counter()
        assert store.put(NAMESPACE, "captured", kv, on_durable=lambda _: visible.set()).accepted
        assert visible.wait(60)
        return time.perf_counter() - started

    return measure


def disk_load(store: DonorStore, name: str) -> Callable[[], float]:
    def measure() -> float:
        handle = store.acquire(NAMESPACE, name)
        assert handle is not None
        with handle:
            started = time.perf_counter()
            store.load(handle).result(120)
            return time.perf_counter() - started

    return measure


def put_and_verify(store: DonorStore, kv: DonorKv) -> None:
    name = str(kv.tokens)
    assert store.put(NAMESPACE, name, kv).accepted
    assert store.flush(300), "the donor did not become durable"
    handle = store.acquire(NAMESPACE, name)
    assert handle is not None, store.stats()
    with handle:
        (part,) = store.load(handle).result(120)
        (piece,) = store.load(handle, [(5, kv.tokens // 2)]).result(120)
    assert part.values is not None
    assert kv.values is not None
    assert torch.equal(part.keys, kv.keys), "wrong bytes"
    assert torch.equal(part.values, kv.values), "wrong bytes"
    assert torch.equal(piece.keys, kv.keys[:, 5 : kv.tokens // 2]), "wrong bytes"


def measure_tokens(
    tokens: int, host: DonorStore, disk: DonorStore, compute: Compute, repeats: int
) -> list[dict[str, Any]]:
    kv = donor(tokens)
    for store in (host, disk):
        put_and_verify(store, kv)
    rows = []
    for beside in (False, True):
        with compute.running(beside):
            seconds = {
                "raw": median_seconds(raw_copy(kv.nbytes), repeats),
                "load": median_seconds(store_load(host, str(tokens)), repeats),
                "capture": median_seconds(store_capture(host, kv), max(3, repeats // 3)),
                "disk": median_seconds(disk_load(disk, str(tokens)), 3),
            }
            layer_0 = median_seconds(first_layer(host, str(tokens)), repeats)
            call = median_seconds(call_time(host, str(tokens)), repeats)
        row: dict[str, Any] = {"tokens": tokens, "bytes": kv.nbytes, "compute_beside": beside}
        row |= {f"{name}_gb_s": round(kv.nbytes / taken / 1e9, 2) for name, taken in seconds.items()}
        row |= {"load_ms": round(seconds["load"] * 1e3, 3), "layer_0_ms": round(layer_0 * 1e3, 3)}
        row |= {"load_call_ms": round(call * 1e3, 3), "ratio": round(seconds["raw"] / seconds["load"], 3)}
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="8,192 tokens, 5 repeats")
    parser.add_argument("--folder", help="on the disk to measure; default: a temporary folder")
    arguments = parser.parse_args()
    if arguments.folder and not os.path.isdir(arguments.folder):
        # Not made: on a disk that is not mounted it would measure another one.
        parser.error(f"--folder {arguments.folder} is not a folder: name one on the disk to measure")
    if not torch.cuda.is_available():
        print("store_bandwidth measures CUDA transfers and finds no CUDA device: run it on a GPU host", file=sys.stderr)
        return 2
    if arguments.quick:
        arguments.tokens, arguments.repeats = [8192], 5
    compute = Compute()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        host = DonorStore(StoreOptions(host_bytes=6 * GIB))
        disk = DonorStore(StoreOptions(host_bytes=0, disk_bytes=16 * GIB, disk_path=folder))
        with host, disk:
            for tokens in arguments.tokens:
                rows += measure_tokens(tokens, host, disk, compute, arguments.repeats)
            host.check_integrity()
            disk.check_integrity()
    columns = list(rows[0])
    print(" | ".join(columns))
    for row in rows:
        print(" | ".join(str(row[column]) for column in columns))
    lowest = min(row["ratio"] for row in rows)
    device = torch.cuda.get_device_name()
    print(json.dumps({"device": device, "torch": torch.__version__, "bar": BAR, "lowest_ratio": lowest, "rows": rows}))
    return 0 if lowest >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
