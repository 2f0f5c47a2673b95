"""The launches of mean shift in an engine's pool: everything is on the device before the first layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from torch import Tensor

from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.layout import FP8_LARGEST, PagedKv
from semblend_core.kv.mean_shift import MeasuredSpans
from semblend_core.kv.moves import Indices, resident_angles, upload
from semblend_core.kv.places import Places, tiles
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.row_shift import LARGEST_CHANGE, LEAST_WEIGHT, RowShift
from semblend_core.kv.triton_mean_shift_kernels import (
    choose_kernel,
    correct_kernel,
    mean_kernel,
    measure_kernel,
    weigh_kernel,
)
from semblend_core.kv.triton_rows import (
    COMPILE_OPTIONS,
    WARPS,
    Launch,
    block_to_divide_by,
    row_constants,
    rows_per_program,
)

TILE_BYTES = 8192
"""Bytes of keys, and again of values, that one program corrects. Of fp8 half as many: its sums are as wide."""
LEAST_COUNTED = 2
"""Bytes that a number counts for at least."""
FEWEST_ROWS = 16
"""Rows that one program measures at least: with less, adding up the sums takes as long as making them."""
SPAN_ROWS = 128
"""Whose lengths ``choose_kernel`` adds up at a time."""
SUMS, COLUMNS = 64, 64
"""Partial sums and components that one step of ``mean_kernel`` takes."""


LONGEST = 3e4
"""What one number of a change counts for at most: half of what 16 bits hold."""


@dataclass(frozen=True)
class Weighing:
    """How ``weigh_kernel`` multiplies: long spans have millions of weights, each for all numbers of a row."""

    dtype: torch.dtype
    """Of the weights and of what they weigh. It adds up in float32."""
    tokens: int
    """Whose means one program makes."""
    rows: int
    """That it takes at a time."""
    columns: int
    """Components that it makes of each."""
    warps: int

    @classmethod
    def of(cls, pool: PagedKv) -> Weighing:
        return EXACTLY if pool.dtype is torch.float32 else FAST


EXACTLY = Weighing(torch.float32, 32, 32, 64, 4)
"""For pools of float32: without tensor cores, at a few TFLOP/s."""
FAST = Weighing(torch.float16, 128, 64, 128, 8)
"""On tensor cores. What is lost of a mean is no more than what a pool of 16 bits loses by rounding."""


class TritonMeanShift:
    """A few launches a layer. ``old`` is what the rows of ``measured`` held before they were computed."""

    def __init__(
        self,
        measured: MeasuredSpans,
        places: Places,
        old: DonorKv,
        pool: PagedKv,
        rotation: Rotation,
        weighing: RowShift | None = None,
    ) -> None:
        """``weighing``: weighs the rows for each token; None: one mean for all."""
        how = Weighing.of(pool)
        weights = None if weighing is None else weighing.weights(how.rows, how.dtype)
        warps = {weigh_kernel: how.warps}
        self._launches = [
            Launch(
                kernel,
                grid,
                arguments,
                "layer",
                pool.device,
                {"num_warps": warps.get(kernel, WARPS), **COMPILE_OPTIONS},
            )
            for kernel, grid, arguments in launches(measured, places, old, pool, rotation, weights)
        ]

    def apply(self, layer: int) -> None:
        for launch in self._launches:
            launch(layer)


def launches(
    measured: MeasuredSpans,
    places: Places,
    old: DonorKv,
    pool: PagedKv,
    rotation: Rotation,
    weights: tuple[Tensor, Indices] | None = None,
) -> list[tuple[Any, tuple[int, int, int], dict[str, Any]]]:
    """Kernels in their order, each with its grid and its arguments by name, all but ``layer``.

    ``weights``: where tokens weigh the rows, of each span [tokens, rows and zeros up to a multiple of what
    :class:`Weighing` takes at a time], one behind the other in its dtype; and how many rows and zeros each has.
    """
    _, _, heads, key_dim = pool.keys[0].shape
    values = pool.values or pool.keys
    value_dim = pool.values[0].shape[3] if pool.values else 0
    width = key_dim + value_dim
    corrected_rows = rows_per_program(max(key_dim, value_dim) * max(pool.dtype.itemsize, LEAST_COUNTED), TILE_BYTES)
    measured_rows = max(FEWEST_ROWS, corrected_rows) if weights is None else 1
    lengths = places.lengths.astype(np.int64)

    is_measured = np.zeros(len(places.blocks) * places.block_size, np.uint8)
    is_measured[measured.computed - places.first_position] = 1
    measured_spans, first_measured = tiles(measured.counts, measured_rows)
    corrected_spans, first_corrected = tiles(places.lengths * heads, corrected_rows)
    host_tables: dict[str, npt.NDArray[Any]] = {
        "layer_starts": pool.layer_starts,
        "scales": pool.scale_table,
        "starts": places.starts,
        "lengths": places.lengths,
        "is_measured": is_measured,
        "row_offsets": measured.offsets.astype(np.int32),
        "row_counts": measured.counts.astype(np.int32),
        "first_rows": (np.cumsum(measured.counts) - measured.counts).astype(np.int32),
        "shares": (measured.shift.strength / measured.counts).astype(np.float32),
        "measured_spans": measured_spans,
        "first_measured": first_measured,
        "measured_tiles": -(-measured.counts // measured_rows).astype(np.int32),
        "first_tokens": (np.cumsum(lengths) - lengths).astype(np.int32),
        "corrected_spans": corrected_spans,
        "first_corrected": first_corrected,
    }
    there: dict[str, Tensor] = {}
    if isinstance(places.blocks, Tensor):
        there["blocks"] = places.blocks
    else:
        host_tables["blocks"] = places.blocks
    tables = there | dict(zip(host_tables, upload(list(host_tables.values()), pool.device), strict=True))
    cos, sin = resident_angles(rotation, pool.device, int(places.lengths.max()))
    sums = torch.empty((measured_spans.size, heads, width), dtype=torch.float32, device=pool.device)
    # A mean for each token is as large as a layer's KV, and no more exact than what it was made of.
    of_spans = weights is None
    means = torch.empty(
        (measured.counts.size if of_spans else int(lengths.sum()), heads, width),
        dtype=torch.float32 if of_spans else Weighing.of(pool).dtype,
        device=pool.device,
    )
    squares = sums if weights is None else torch.empty((measured_spans.size, heads), device=pool.device)
    shared = {
        "keys": pool.keys[0],
        "values": values[0],
        **{name: tables[name] for name in ("layer_starts", "scales", "blocks", "starts")},
        "cos_table": cos,
        "sin_table": sin,
        "LAYERS": pool.layers,
        "HEADS": heads,
        **row_constants(key_dim, value_dim, rotation),
        "KEY_BLOCK": block_to_divide_by(pool.keys),
        "VALUE_BLOCK": block_to_divide_by(values),
        "TABLE_BLOCK": places.block_size,
        "UNIT": pool.layer_unit,
        "SCALED": pool.is_scaled,
    }
    for part, views in (("key", pool.keys), ("value", values)):
        block, token, head, _ = views[0].stride()
        shared |= {f"{part}_block": block, f"{part}_token": token, f"{part}_head": head}
    measuring = {
        **shared,
        **{name: tables[name] for name in ("row_counts", "first_rows", "row_offsets")},
        "tile_spans": tables["measured_spans"],
        "first_tiles": tables["first_measured"],
        "old_keys": old.keys,
        "old_values": old.keys if old.values is None else old.values,
        "sums": sums,
        "squares": squares,
        "all_measured": old.tokens,
        "ROWS": measured_rows,
        "WEIGHED": weights is not None,
    }
    averaging = {
        "sums": sums,
        "first_tiles": tables["first_measured"],
        "tile_counts": tables["measured_tiles"],
        "shares": tables["shares"],
        "means": means,
        "HEADS": heads,
        "WIDTH": width,
        "SUMS": SUMS,
        "COLUMNS": COLUMNS,
    }
    correcting = {
        **shared,
        "lengths": tables["lengths"],
        "is_measured": tables["is_measured"],
        "tile_spans": tables["corrected_spans"],
        "first_tiles": tables["first_corrected"],
        "first_tokens": tables["first_tokens"],
        "means": means,
        "PER_TOKEN": weights is not None,
        "LARGEST": FP8_LARGEST.get(pool.dtype, 0.0),
        "ROWS": corrected_rows,
    }
    if weights is None:
        columns = triton.cdiv(width, COLUMNS)
        making_means = [(mean_kernel, (measured.counts.size, heads, columns), averaging)]
    else:
        making_means = _weighing(Weighing.of(pool), measured, lengths, tables, weights, sums, squares, means, key_dim)
    return [
        (measure_kernel, (measured_spans.size, heads, 1), measuring),
        *making_means,
        (correct_kernel, (corrected_spans.size, 1, 1), correcting),
    ]


def _weighing(
    how: Weighing,
    measured: MeasuredSpans,
    lengths: npt.NDArray[np.int64],
    tables: dict[str, Tensor],
    weights: tuple[Tensor, Indices],
    changes: Tensor,
    squares: Tensor,
    means: Tensor,
    key_dim: int,
) -> list[tuple[Any, tuple[int, int, int], dict[str, Any]]]:
    _, heads, width = changes.shape
    table, padded = weights
    sizes = lengths * padded
    spans, first = tiles(lengths, how.tokens)
    choosing_spans, first_choosing = tiles(measured.counts, FEWEST_ROWS)
    ends = np.cumsum(padded)
    host_tables = [np.cumsum(sizes) - sizes, (ends - padded).astype(np.int32), padded.astype(np.int32)]
    starts, first_chosen, padded_counts, tile_spans, first_tiles, *choosing_tiles = upload(
        [*host_tables, spans, first, choosing_spans, first_choosing], changes.device
    )
    chosen = torch.zeros((int(padded.sum()), heads * width), dtype=how.dtype, device=changes.device)
    counts = torch.zeros(len(chosen), dtype=how.dtype, device=changes.device)
    rows = {name: tables[name] for name in ("first_rows", "row_counts")}
    out = {"chosen": chosen, "counts": counts, "first_chosen": first_chosen}
    choosing = {
        **rows,
        **out,
        "changes": changes,
        "squares": squares,
        "tile_spans": choosing_tiles[0],
        "first_tiles": choosing_tiles[1],
        "LARGEST": LARGEST_CHANGE,
        "MOST": LONGEST,
        "HEADS": heads,
        "NUMBERS": heads * width,
        "ROWS": FEWEST_ROWS,
        "SPAN_ROWS": SPAN_ROWS,
        "COLUMNS": COLUMNS,
    }
    weighing = {
        **out,
        "weights": table,
        "weight_starts": starts,
        "padded_counts": padded_counts,
        "first_tokens": tables["first_tokens"],
        "span_lengths": tables["lengths"],
        "tile_spans": tile_spans,
        "first_tiles": first_tiles,
        "means": means,
        "key_strength": measured.shift.strength,
        "value_strength": measured.shift.of_values,
        "LEAST": LEAST_WEIGHT,
        "HEADS": heads,
        "KEY_DIM": key_dim,
        "WIDTH": width,
        "TOKENS": how.tokens,
        "ROWS": how.rows,
        "COLUMNS": how.columns,
    }
    # Parts of one tile side by side: they read the same weights.
    return [
        (choose_kernel, (choosing_spans.size, 1, 1), choosing),
        (weigh_kernel, (triton.cdiv(heads * width, how.columns), spans.size, 1), weighing),
    ]
