"""Relocation on a GPU: first that the kernel writes the bits of the reference, then how close it comes to a plain copy.

The shape timed is Qwen2.5-7B's KV (28 layers, 4 KV heads of 128, bfloat16). Block tables are shuffled, pools are twice
the moved tokens and far beyond the L2 cache. The measure is a device-to-device copy of as many bytes, in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from semblend_core import Span
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.layout import PagedKv
from semblend_core.kv.moves import Moves, SlotTable
from semblend_core.kv.places import SpanMoves
from semblend_core.kv.relocation import relocate
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.torch_relocation import relocate_with_torch
from semblend_core.kv.triton_relocation import TILE_BYTES, launch, launch_arguments, relocate_with_triton
from semblend_core.kv.triton_rows import WARPS

Row = dict[str, Any]
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Shape:
    """A pool to be made. Sizes in layers, blocks, tokens per block, heads and components."""

    layers: int = 28
    blocks: int = 1024
    block: int = 16
    heads: int = 4
    dim: int = 128
    dtype: torch.dtype = torch.bfloat16

    def random(self, device: torch.device, *shape: int) -> list[Tensor]:
        wide = self.dtype if self.dtype.itemsize > 1 else torch.bfloat16
        return [torch.randn(shape, dtype=wide, device=device).to(self.dtype) for _ in range(self.layers)]


def nhd(s: Shape, device: torch.device) -> PagedKv:
    return PagedKv.from_stacked(s.random(device, 2, s.blocks, s.block, s.heads, s.dim), 0)


def hnd(s: Shape, device: torch.device) -> PagedKv:
    layers = s.random(device, 2, s.blocks, s.heads, s.block, s.dim)
    return PagedKv.from_stacked([layer.transpose(2, 3) for layer in layers], 0)


def joined(s: Shape, device: torch.device) -> PagedKv:
    return PagedKv.from_joined(s.random(device, s.blocks, s.heads, s.block, 2 * s.dim), s.dim)


def slots(s: Shape, device: torch.device) -> PagedKv:
    keys, values = (s.random(device, s.blocks * s.block, s.heads, s.dim) for _ in "kv")
    return PagedKv.from_slots(keys, values)


def latent(s: Shape, device: torch.device) -> PagedKv:
    return PagedKv.from_latent(s.random(device, s.blocks, s.block, s.dim))


Maker = Callable[[Shape, torch.device], PagedKv]
LAYOUTS: dict[str, Maker] = {"NHD": nhd, "HND": hnd, "joined": joined, "slots": slots}


def llama(dim: int, interleaved: bool = False, share: float = 1.0) -> Rotation:
    config = {"model_type": "llama", "head_dim": dim, "rope_theta": 1e6, "partial_rotary_factor": share}
    return Rotation.from_config(config, interleaved=interleaved)


def moves_for(source: PagedKv, target: PagedKv, tokens: int, spans: int, seed: int = 0) -> Moves:
    """``tokens`` in ``spans`` runs, taken in another order and from within blocks."""
    random = np.random.default_rng(seed)
    taken, given = (SlotTable(random.permutation(pool.keys[0].shape[0]), pool.block_size) for pool in (source, target))
    length = tokens // spans
    order = random.permutation(spans)
    runs = [Span(i * length, "donor", int(order[i]) * length + 5 + i % 8, length) for i in range(spans)]
    return Moves.build(runs, sources={"donor": taken}, target=given)


# --- Correctness ---------------------------------------------------------------------------------------------------


def correctness_cases(types: tuple[torch.dtype, ...]) -> Iterator[tuple[str, Maker, Maker, Shape, Rotation]]:
    small = Shape(layers=3, blocks=24, heads=2, dim=128)
    for dtype in types:
        for source in LAYOUTS:
            for target in LAYOUTS:
                shape = replace(small, dtype=dtype)
                yield f"{dtype} {source} to {target}", LAYOUTS[source], LAYOUTS[target], shape, llama(128)
        yield f"{dtype} interleaved", nhd, joined, replace(small, dtype=dtype), llama(128, True)
        yield f"{dtype} partial", hnd, nhd, replace(small, dtype=dtype), llama(128, share=0.5)
    for block in (1, 32, 20):
        yield f"block {block}", hnd, joined, replace(small, block=block, blocks=400 // block), llama(128)
    yield "heads of 80", nhd, hnd, replace(small, heads=3, dim=80), llama(80)
    for interleaved in (True, False):
        config = {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
        rotation = Rotation.from_config({**config, "rope_interleave": interleaved})
        yield f"MLA interleaved={interleaved}", latent, latent, replace(small, heads=1, dim=576), rotation


def bits(pool: PagedKv) -> list[Tensor]:
    return [view.clone(memory_format=torch.contiguous_format).view(torch.uint8) for view in pool.keys + pool.values]


def same_bits(source: PagedKv, target: PagedKv, rotation: Rotation) -> bool:
    """Whether kernel and reference leave the same bytes in the whole pool, written or not."""
    moves = moves_for(source, target, tokens=256, spans=8)
    before = [view.clone() for view in target.keys + target.values]
    relocate_with_triton(source, target, SpanMoves.of_tokens(moves), rotation)
    by_kernel = bits(target)
    for view, old in zip(target.keys + target.values, before, strict=True):
        view.copy_(old)
    relocate_with_torch(source, target, moves, rotation)
    return all(map(torch.equal, by_kernel, bits(target)))


def check_correctness(device: torch.device, types: tuple[torch.dtype, ...] = TYPES) -> Row:
    checked, wrong = 0, []
    for name, make_source, make_target, shape, rotation in correctness_cases(types):
        torch.manual_seed(checked)
        source, target = make_source(shape, device), make_target(shape, device)
        pairs = [(name, source, target)]
        if shape.dtype.itemsize == 1 and source.values:
            scales = [tuple(scale * (layer + 1) for layer in range(shape.layers)) for scale in (0.37, 0.11, 0.05, 0.9)]
            pairs.append((f"{name}, scales", source.with_scales(*scales[:2]), target.with_scales(*scales[2:])))
        for label, taken, given in pairs:
            checked += 1
            if not same_bits(taken, given, rotation):
                wrong.append(label)
    print(f"correctness: {checked} cases, {len(wrong)} differ from the reference {wrong}", flush=True)
    return {"cases": checked, "differ": wrong}


# --- Time ----------------------------------------------------------------------------------------------------------


def median_ms(call: Callable[[], object], repeats: int, warm_up: int = 3) -> float:
    for _ in range(warm_up):
        call()
    cuda: Any = torch.cuda
    pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(repeats)]
    cuda.synchronize()
    for start, end in pairs:
        # The device is busy until the host has queued the call: a host that is late would be timed instead.
        cuda._sleep(BUSY_CYCLES)
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(end) for start, end in pairs))


def host_ms(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def copy_ms(moved_bytes: int, device: torch.device) -> float:
    source, target = (torch.empty(moved_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    return median_ms(lambda: target.copy_(source), 30)


def time_layout(layout: str, tokens: int, span_counts: list[int], device: torch.device) -> Iterator[Row]:
    shape = Shape(blocks=2 * tokens // 16)
    source, target = (LAYOUTS[layout](shape, device) for _ in range(2))
    rotation = llama(shape.dim)
    moved_bytes = tokens * shape.layers * shape.heads * 2 * shape.dim * shape.dtype.itemsize
    for spans in span_counts:
        moves = moves_for(source, target, tokens, spans)
        ready = launch_arguments(source, target, SpanMoves.of_tokens(moves), rotation)
        copy = copy_ms(moved_bytes, device)
        kernel = median_ms(lambda: launch(*ready, device), 30)  # noqa: B023
        index_ops = median_ms(lambda: relocate_with_torch(source, target, moves, rotation), 5, warm_up=1)  # noqa: B023
        yield {
            "layout": layout,
            "page": source.block_size,
            "tokens": tokens,
            "spans": spans,
            "bytes": moved_bytes,
            "copy_ms": copy,
            "copy_gb_s": 2 * moved_bytes / copy / 1e6,
            "kernel_ms": kernel,
            "kernel_gb_s": 2 * moved_bytes / kernel / 1e6,
            "of_copy": copy / kernel,
            "torch_ms": index_ops,
            "torch_over_kernel": index_ops / kernel,
            "call_ms": host_ms(lambda: relocate(source, target, moves, rotation), 10),  # noqa: B023
            "build_ms": host_ms(lambda: moves_for(source, target, tokens, spans), 3),  # noqa: B023
        }


BUSY_CYCLES = 20_000_000
"""Some 10 ms for which the device has something else to do: longer than the host takes to queue a relocation."""


def time_fresh_donor(tokens: int, spans: int, device: torch.device) -> Row:
    """A dense donor that no pool was made of before, as in every request: views, moves and relocation, from the start.

    ``returned_ms`` is when the host goes on, with the device busy: above 10 ms it was made to wait. ``device_ms`` is
    transfers and kernel, queued behind the busy time so that nothing of the host is in it.
    """
    shape = Shape(blocks=2 * tokens // 16)
    size = (shape.layers, tokens, shape.heads, shape.dim)
    keys, values = (torch.randn(size, dtype=shape.dtype, device=device) for _ in "kv")
    donor, target, rotation = DonorKv(keys, values), joined(shape, device), llama(shape.dim)
    given = SlotTable(np.random.default_rng(0).permutation(shape.blocks), shape.block)
    length = tokens // spans
    runs = [Span(i * length, "donor", (spans - 1 - i) * length, length) for i in range(spans)]

    def call() -> None:
        moves = Moves.build(runs, sources={"donor": SlotTable.of_donor(donor)}, target=given)
        relocate(PagedKv.from_donor(donor), target, moves, rotation)

    call()
    cuda: Any = torch.cuda
    returned, on_device = [], []
    for _ in range(10):
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        cuda._sleep(BUSY_CYCLES)
        begin = time.perf_counter()
        start.record()
        call()
        end.record()
        returned.append((time.perf_counter() - begin) * 1e3)
        cuda.synchronize()
        on_device.append(start.elapsed_time(end))
    return {
        "tokens": tokens,
        "spans": spans,
        "call_ms": host_ms(call, 10),
        "returned_ms": statistics.median(returned),
        "device_ms": statistics.median(on_device),
    }


def sweep(layout: str, tokens: int, device: torch.device) -> Iterator[Row]:
    shape = Shape(blocks=2 * tokens // 16)
    source, target = (LAYOUTS[layout](shape, device) for _ in range(2))
    moves = SpanMoves.of_tokens(moves_for(source, target, tokens, 4))
    for warps in (2, 4, 8):
        for tile in (2048, 4096, 8192, 16384, 32768):
            ready = launch_arguments(source, target, moves, llama(shape.dim), tile)
            call = partial(launch, *ready, device, warps)
            yield {
                "layout": layout,
                "tokens": tokens,
                "tile": tile,
                "warps": warps,
                "kernel_ms": median_ms(call, 20),
            }


def print_table(title: str, rows: list[Row]) -> None:
    print(f"\n{title}")
    columns = [name for name in rows[0] if name != "bytes"]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        cells = (f"{row[name]:.3f}" if isinstance(row[name], float) else str(row[name]) for name in columns)
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results here too")
    parser.add_argument("--sanitize", action="store_true", help="correctness only, for compute-sanitizer")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("relocation is timed on a CUDA device and torch sees none")
    device = torch.device("cuda", torch.cuda.current_device())
    results: Row = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "tile_bytes": TILE_BYTES,
        "warps": WARPS,
        "correctness": check_correctness(device, TYPES[2:4] if options.sanitize else TYPES),
    }
    if not options.sanitize:
        sizes = (8192, 32768)
        results["times"] = [
            row for tokens in sizes for layout in LAYOUTS for row in time_layout(layout, tokens, [1, 4, 64], device)
        ]
        print_table(f"{results['device']}, torch {torch.__version__}, triton {triton.__version__}", results["times"])
        results["fresh_donor"] = [time_fresh_donor(tokens, spans, device) for tokens in sizes for spans in (1, 64)]
        print_table("A dense donor seen for the first time", results["fresh_donor"])
        results["sweep"] = [
            row for tokens in sizes for layout in ("NHD", "joined") for row in sweep(layout, tokens, device)
        ]
        print_table("Tile and warps", results["sweep"])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if results["correctness"]["differ"]:
        sys.exit("the kernel differs from the reference")


if __name__ == "__main__":
    main()
