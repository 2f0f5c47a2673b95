"""The launches of mean shift in an engine's pool: everything is on the device before the first layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from torch import Tensor

from semblend_core.kv.layout import FP8_LARGEST, PagedKv
from semblend_core.kv.mean_shift import MeasuredSpans
from semblend_core.kv.moves import begins_of, resident_angles, upload
from semblend_core.kv.places import Places, tiles
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.row_shift import LARGEST_CHANGE, LEAST_WEIGHT, middle_layer
from semblend_core.kv.triton_mean_shift_kernels import (
    choose_kernel,
    correct_kernel,
    keep_kernel,
    mean_kernel,
    measure_kernel,
    weigh_kernel,
)
from semblend_core.kv.triton_row_weights import RowWeights, asked_of
from semblend_core.kv.triton_row_weights_kernels import ask_kernel, common_kernel, direct_kernel, front_kernel
from semblend_core.kv.triton_rows import (
    COMPILE_OPTIONS,
    WARPS,
    Launch,
    block_to_divide_by,
    current_stream,
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


Step = tuple[Any, tuple[int, int, int], dict[str, Any]]
"""A kernel, its grid, and its arguments by name, all but ``layer``."""


class TritonMeanShift:
    """A few launches a layer. Made before the rows are computed: what lies there is kept for comparison."""

    def __init__(self, measured: MeasuredSpans, places: Places, pool: PagedKv, rotation: Rotation) -> None:
        plan = Preparation(measured, places, pool, rotation)
        warps = {weigh_kernel: plan.how.warps}
        self._device = pool.device

        def bound(step: Step) -> Launch:
            kernel, grid, arguments = step
            options = {"num_warps": warps.get(kernel, WARPS), **COMPILE_OPTIONS}
            return Launch(kernel, grid, arguments, "layer", options)

        self._launches = [bound(step) for step in plan.of_each_layer()]
        with current_stream(pool.device) as stream:
            bound(plan.keeping())(0, stream)
            if plan.weights is not None:
                middle = middle_layer(pool.layers)
                launches = (partial(bound(step), middle, stream) for step in plan.asking())
                plan.weights.make(plan.given, *launches)

    def apply(self, layer: int) -> None:
        with current_stream(self._device) as stream:
            for launch in self._launches:
                launch(layer, stream)


class Preparation:
    """All that the kernels take. It goes to the device in one transfer."""

    def __init__(self, measured: MeasuredSpans, places: Places, pool: PagedKv, rotation: Rotation) -> None:
        """Of ``measured``, what tokens weigh may be only some rows; all of them stay as they are."""
        self.how = Weighing.of(pool)
        lengths = places.lengths.astype(np.int64)
        self.weights: RowWeights | None = None
        if measured.shift.weighs_rows:
            measured = asked_of(measured)
            self.weights = RowWeights.of(measured, lengths, self.how.rows)
        _, _, self._heads, key_dim = pool.keys[0].shape
        value_dim = int(pool.values[0].shape[3]) if pool.values else 0
        self._width = key_dim + value_dim
        row_bytes = max(key_dim, value_dim) * max(pool.dtype.itemsize, LEAST_COUNTED)
        self._corrected_rows = rows_per_program(row_bytes, TILE_BYTES)
        self._measured_rows = max(FEWEST_ROWS, self._corrected_rows) if self.weights is None else 1
        tables = self._tables(measured, places, lengths, pool)
        angles = resident_angles(rotation, pool.device, int(lengths.max()))
        self._sizes = {name: len(table) for name, table in tables.items()}
        self.given: dict[str, Any] = {
            **_of_pool(pool, places, rotation),
            **dict(zip(tables, upload(list(tables.values()), pool.device), strict=True)),
            **dict(zip(("cos_table", "sin_table"), angles, strict=True)),
            **self._memory(measured, int(lengths.sum()), pool),
            "all_measured": int(measured.rows.size),
            "WEIGHED": self.weights is not None,
            "PER_TOKEN": self.weights is not None,
        }
        if self.weights is not None:
            parts = 2 if value_dim else 1
            self.given |= self.weights.arguments(self._heads, self._width, parts, self.how.dtype, pool.device)
            self.given |= {"key_strength": measured.shift.strength, "value_strength": measured.shift.of_values}

    def keeping(self) -> Step:
        """Before the rows are computed, all layers at once."""
        pairs, rows = self.given["all_measured"] * self._heads, self._corrected_rows
        return self._step(keep_kernel, (-(-pairs // rows), self.given["LAYERS"], 1), ROWS=rows)

    def asking(self) -> list[Step]:
        """Before the first layer, where tokens weigh rows."""
        of_tokens = self._tiles("token_spans", "first_token_tiles")
        tiles_of_tokens = (self._sizes["token_spans"], 1, 1)
        rows = self._corrected_rows
        columns = triton.cdiv(self._heads * self._width, COLUMNS)
        return [
            self._step(front_kernel, (self._sizes["corrected_spans"], 1, 1), **self._corrected, ROWS=rows),
            self._step(common_kernel, (self._sizes["starts"], columns, 1), ROWS=FEWEST_ROWS, COLUMNS=COLUMNS),
            self._step(direct_kernel, tiles_of_tokens, **of_tokens),
            self._step(ask_kernel, tiles_of_tokens, **of_tokens, ROWS=self.how.rows),
        ]

    def of_each_layer(self) -> list[Step]:
        """Kernels in their order."""
        measured = self._tiles("measured_spans", "first_measured")
        return [
            self._step(
                measure_kernel, (self._sizes["measured_spans"], self._heads, 1), **measured, ROWS=self._measured_rows
            ),
            *(self._averaging() if self.weights is None else self._weighing()),
            self._step(
                correct_kernel, (self._sizes["corrected_spans"], 1, 1), **self._corrected, ROWS=self._corrected_rows
            ),
        ]

    def _averaging(self) -> list[Step]:
        own = {"first_tiles": self.given["first_measured"], "tile_counts": self.given["measured_tiles"]}
        grid = (self._sizes["starts"], self._heads, triton.cdiv(self._width, COLUMNS))
        return [self._step(mean_kernel, grid, **own, SUMS=SUMS, COLUMNS=COLUMNS)]

    def _weighing(self) -> list[Step]:
        numbers, how = self._heads * self._width, self.how
        choosing = {"changes": self.given["sums"], "LARGEST": LARGEST_CHANGE, "MOST": LONGEST, "ROWS": FEWEST_ROWS}
        choosing |= {**self._tiles("choosing_spans", "first_choosing"), "NUMBERS": numbers, "SPAN_ROWS": SPAN_ROWS}
        weighing = {**self._tiles("weighing_spans", "first_weighing"), "span_lengths": self.given["lengths"]}
        weighing |= {"LEAST": LEAST_WEIGHT, "TOKENS": how.tokens, "ROWS": how.rows, "COLUMNS": how.columns}
        # Parts of one tile side by side: they read the same weights.
        grid = (triton.cdiv(numbers, how.columns), self._sizes["weighing_spans"], 1)
        return [
            self._step(choose_kernel, (self._sizes["choosing_spans"], 1, 1), **choosing, COLUMNS=COLUMNS),
            self._step(weigh_kernel, grid, **weighing),
        ]

    def _step(self, kernel: Any, grid: tuple[int, int, int], **own: Any) -> Step:
        given = self.given | own
        return kernel, grid, {name: given[name] for name in kernel.arg_names if name != "layer"}

    @property
    def _corrected(self) -> dict[str, Tensor]:
        return self._tiles("corrected_spans", "first_corrected")

    def _tiles(self, spans: str, first: str) -> dict[str, Tensor]:
        return {"tile_spans": self.given[spans], "first_tiles": self.given[first]}

    def _tables(
        self, measured: MeasuredSpans, places: Places, lengths: npt.NDArray[np.int64], pool: PagedKv
    ) -> dict[str, npt.NDArray[Any]]:
        counts, offsets = measured.counts, measured.offsets
        is_measured = np.zeros(len(places.blocks) * places.block_size, np.uint8)
        is_measured[measured.computed - places.first_position] = 1
        measured_spans, first_measured = tiles(counts, self._measured_rows)
        corrected_spans, first_corrected = tiles(places.lengths * self._heads, self._corrected_rows)
        made: dict[str, npt.NDArray[Any]] = {
            "layer_starts": pool.layer_starts,
            "scales": pool.scale_table,
            "starts": places.starts,
            "lengths": places.lengths,
            "is_measured": is_measured,
            "row_offsets": offsets.astype(np.int32),
            "row_places": (measured.rows - places.first_position).astype(np.int32),
            "row_counts": counts.astype(np.int32),
            "first_rows": begins_of(counts).astype(np.int32),
            "measured_spans": measured_spans,
            "first_measured": first_measured,
            "first_tokens": begins_of(lengths).astype(np.int32),
            "corrected_spans": corrected_spans,
            "first_corrected": first_corrected,
        }
        if not isinstance(places.blocks, Tensor):
            made["blocks"] = places.blocks
        if self.weights is None:
            made["shares"] = (measured.shift.strength / counts).astype(np.float32)
            made["measured_tiles"] = (-(-counts // self._measured_rows)).astype(np.int32)
            return made
        made["choosing_spans"], made["first_choosing"] = tiles(counts, FEWEST_ROWS)
        made["weighing_spans"], made["first_weighing"] = tiles(lengths, self.how.tokens)
        return made | self.weights.host_tables()

    def _memory(self, measured: MeasuredSpans, tokens: int, pool: PagedKv) -> dict[str, Tensor]:
        """Tensors that kernels fill."""
        rows, heads, device, weights = measured.rows.size, self._heads, pool.device, self.weights
        old = pool.empty_donor(rows)
        made = {"old_keys": old.keys, "old_values": old.keys if old.values is None else old.values}
        sums = torch.empty((self._sizes["measured_spans"], heads, self._width), device=device)
        if weights is None:
            means = torch.empty((len(measured.counts), heads, self._width), device=device)
            return made | {"sums": sums, "squares": sums, "means": means}
        dtype, padded = self.how.dtype, int(weights.padded.sum())
        return {
            **made,
            "sums": sums,
            "squares": torch.empty((rows, heads), device=device),
            # A mean for each token is as large as a layer's KV, and no more exact than what it was made of.
            "means": torch.empty((tokens, heads, self._width), dtype=dtype, device=device),
            "chosen": torch.zeros((padded, heads * self._width), dtype=dtype, device=device),
            "counts": torch.zeros(padded, dtype=dtype, device=device),
        }


def _of_pool(pool: PagedKv, places: Places, rotation: Rotation) -> dict[str, Any]:
    _, _, heads, key_dim = pool.keys[0].shape
    values = pool.values or pool.keys
    value_dim = int(pool.values[0].shape[3]) if pool.values else 0
    made: dict[str, Any] = {
        "keys": pool.keys[0],
        "values": values[0],
        "LAYERS": pool.layers,
        "HEADS": heads,
        "WIDTH": key_dim + value_dim,
        **row_constants(key_dim, value_dim, rotation),
        "KEY_PADDED": triton.next_power_of_2(key_dim),
        "KEY_BLOCK": block_to_divide_by(pool.keys),
        "VALUE_BLOCK": block_to_divide_by(values),
        "TABLE_BLOCK": places.block_size,
        "UNIT": pool.layer_unit,
        "SCALED": pool.is_scaled,
        "LARGEST": FP8_LARGEST.get(pool.dtype, 0.0),
    }
    if isinstance(places.blocks, Tensor):
        made["blocks"] = places.blocks
    for part, views in (("key", pool.keys), ("value", values)):
        block, token, head, _ = views[0].stride()
        made |= {f"{part}_block": block, f"{part}_token": token, f"{part}_head": head}
    return made
