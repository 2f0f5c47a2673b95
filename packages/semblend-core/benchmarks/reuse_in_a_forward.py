"""What reuse adds to a forward on a GPU: bringing the spans in (``relocate_spans``) and mean shift in every layer.

The shape is Qwen2.5-7B's KV (28 layers, 4 KV heads of 128, bfloat16), 32,768 tokens in 4 spans of 4 donors, of which
15% are computed. Device times are medians by CUDA events with the launches queued behind other work, so that nothing
of the host is in them; host times are medians of how long a call keeps the host. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton

from semblend_core import Span
from semblend_core.kv import (
    DonorKv,
    Moves,
    PagedKv,
    PagedMeanShift,
    Rotation,
    SlotTable,
    paged_mean_shift,
    relocate,
    relocate_spans,
    triton_mean_shift,
    triton_relocation,
)
from semblend_core.recompute import ROW_SHIFT, MeanShift

BUSY_CYCLES = 20_000_000
"""Some 10 ms for which the device has something else to do: longer than the host takes to queue what is timed."""
BLOCK = 16
Call = Callable[[], object]


def device_ms(call: Call, repeats: int) -> float:
    """The device's time for all that ``call`` launches, which must take the host less than the busy time."""
    cuda: Any = torch.cuda
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        cuda._sleep(BUSY_CYCLES)
        start.record()
        call()
        end.record()
        cuda.synchronize()
        times.append(float(start.elapsed_time(end)))
    return statistics.median(times)


def host_ms(call: Call, repeats: int) -> float:
    """How long a call keeps the host while the device is busy with something else."""
    cuda: Any = torch.cuda
    times = []
    for _ in range(repeats):
        cuda.synchronize()
        cuda._sleep(BUSY_CYCLES)
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    cuda.synchronize()
    return statistics.median(times)


class Request:
    """One request's pool, donors, spans and computed rows."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.layers, heads, dim = options.layers, options.kv_heads, options.dim
        blocks = -(-options.tokens // BLOCK)
        random = np.random.default_rng(0)

        def made(*shape: int) -> torch.Tensor:
            return torch.randn(shape, dtype=torch.bfloat16, device=device)

        layers = [made(2 * blocks, heads, BLOCK, 2 * dim) for _ in range(self.layers)]
        self.pool = PagedKv.from_joined(layers, dim)
        self.table = SlotTable(random.permutation(2 * blocks)[:blocks], BLOCK)
        self.rotation = Rotation.from_config({"model_type": "llama", "head_dim": dim, "rope_theta": 1e6})
        length = options.tokens // options.spans
        size = (self.layers, length + 100, heads, dim)
        self.donors = {f"donor {i}": DonorKv(made(*size), made(*size)) for i in range(options.spans)}
        self.spans = [Span(i * length, f"donor {i}", 37 + i, length) for i in range(options.spans)]
        self.shift = MeanShift() if options.shift == "plain" else replace(ROW_SHIFT, learned=False)
        count = int(options.tokens * options.rows)
        self.rows = np.sort(random.choice(length * options.spans, count, replace=False))
        self.bytes = length * options.spans * self.layers * heads * 2 * dim * 2

    def load(self) -> None:
        relocate_spans(self.donors, self.spans, self.pool, self.table, self.rotation)

    def load_one_by_one(self) -> None:
        for span in self.spans:
            donor = self.donors[span.donor_id]
            moves = Moves.build([span], sources={span.donor_id: SlotTable.of_donor(donor)}, target=self.table)
            relocate(PagedKv.from_donor(donor), self.pool, moves, self.rotation)

    def correction(self) -> PagedMeanShift:
        return PagedMeanShift(self.shift, self.spans, self.rows, self.pool, self.table, self.rotation)

    def compute_rows(self) -> None:
        slots = torch.from_numpy(self.table.slots_of(self.rows)).to(self.pool.device)
        torch.manual_seed(1)
        for view in self.pool.keys + self.pool.values:
            view[slots // BLOCK, slots % BLOCK] += 0.5 + torch.randn_like(view[slots // BLOCK, slots % BLOCK])


def same_as_torch(request: Request) -> dict[str, Any]:
    """Both ways from the same start: the spans must be equal in every bit, the corrected KV but for its rounding."""
    request.load_one_by_one()
    wanted = [view.clone() for view in request.pool.keys + request.pool.values]
    for view in request.pool.keys + request.pool.values:
        view.zero_()
    places = torch.from_numpy(request.table.slots_of(np.arange(request.spans[-1].target_end))).to(request.pool.device)
    at = (places // BLOCK, places % BLOCK)
    request.load()
    views = request.pool.keys + request.pool.values
    equal = all(torch.equal(view[at], other[at]) for view, other in zip(views, wanted, strict=True))
    results = []
    for has_kernel in (True, False):
        request.load()
        with patch.object(paged_mean_shift, "has_kernel", return_value=has_kernel):
            correction = request.correction()
        request.compute_rows()
        for layer in (0, request.layers - 1):
            correction.apply(layer)
        chosen = [views[layer] for views in (request.pool.keys, request.pool.values) for layer in (0, -1)]
        results.append([view[at].float() for view in chosen])
    gap = max(float((one - other).abs().max()) for one, other in zip(*results, strict=True))
    apart = [float((one != other).float().mean()) for one, other in zip(*results, strict=True)]
    return {"spans_equal": equal, "shift_largest_difference": gap, "shift_share_that_differs": max(apart)}


def apply_layers(correction: PagedMeanShift, layers: int) -> None:
    for layer in range(layers):
        correction.apply(layer)


def timed(request: Request, repeats: int) -> dict[str, Any]:
    request.load()
    correction = request.correction()
    request.compute_rows()
    apply_all = partial(apply_layers, correction, request.layers)
    source, copied = (torch.empty(request.bytes, dtype=torch.uint8, device=request.pool.device) for _ in "ab")
    all_layers = device_ms(apply_all, repeats)
    return {
        "copy_of_as_many_bytes_device_ms": device_ms(lambda: copied.copy_(source), repeats),
        "apply_all_layers_device_ms": all_layers,
        "apply_per_layer_device_us": all_layers / request.layers * 1e3,
        "apply_all_layers_gb_s": 2 * request.bytes / all_layers / 1e6,
        "apply_per_layer_host_us": host_ms(apply_all, repeats) / request.layers * 1e3,
        "prepare_device_ms": device_ms(request.correction, repeats),
        "prepare_host_ms": host_ms(request.correction, repeats),
        "relocate_spans_device_ms": device_ms(request.load, repeats),
        "relocate_spans_host_ms": host_ms(request.load, repeats),
        "relocate_each_donor_device_ms": device_ms(request.load_one_by_one, repeats),
        "relocate_each_donor_host_ms": host_ms(request.load_one_by_one, repeats),
    }


def swept(request: Request, repeats: int) -> list[dict[str, Any]]:
    """Other tiles than the default, for both."""
    rows = []
    for tile in (2048, 4096, 8192, 16384, 32768):
        triton_mean_shift.TILE_BYTES = triton_relocation.TILE_BYTES = tile
        correction = request.correction()
        apply = device_ms(partial(apply_layers, correction, request.layers), repeats)
        rows.append({"tile": tile, "apply_all_ms": apply, "relocate_spans_ms": device_ms(request.load, repeats)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--spans", type=int, default=4)
    parser.add_argument("--rows", type=float, default=0.15, help="share of the tokens that is computed")
    parser.add_argument("--shift", choices=("rows", "plain"), default="rows", help="each token's mean, or one for all")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--sweep", action="store_true", help="other tiles, too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this is timed on a CUDA device and torch sees none")
    device = torch.device("cuda", torch.cuda.current_device())
    request = Request(options, device)
    results = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "shape": vars(options),
        "bytes": request.bytes,
        **same_as_torch(request),
        **timed(request, options.repeats),
    }
    if options.sweep:
        results["sweep"] = swept(request, options.repeats)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
