# Kernels are written in Triton's language: its values have no Python types, its constants are spelled in capitals.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""Relocation of spans from dense donors as one Triton kernel that finds the slots itself.

A program moves some rows of one span and layer. Donors are allocations of their own: their addresses and strides come
in a table, and nothing that the host sends grows with the tokens but the block table and a number per program.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from semblend_core.kv.donor_kv import DonorKv, InvalidKvError
from semblend_core.kv.layout import FP8_LARGEST, PagedKv
from semblend_core.kv.moves import Indices, upload
from semblend_core.kv.places import Places, tiles
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.triton_rows import (
    COMPILE_OPTIONS,
    WARPS,
    block_to_divide_by,
    move_rows,
    row_constants,
    row_starts,
    rows_per_program,
    slots_at,
)

TILE_BYTES = 8192
"""Bytes of keys, and again of values, that one program moves."""
_WIDEST_LOAD = 16
"""Bytes that a GPU thread moves at once, at most, and only from a multiple of this address."""


@triton.jit
def _donor_rows(part, element: tl.constexpr, layer, tokens, heads, UNIT: tl.constexpr):
    """Addresses of rows; ``part`` is [address, and the strides of layer, token and head in UNIT elements]."""
    address = tl.load(part).to(tl.pointer_type(element))
    if UNIT > 1:
        address = tl.multiple_of(address, 16)
    start = (
        layer * (tl.load(part + 1) * UNIT) + tokens * (tl.load(part + 2) * UNIT) + heads * (tl.load(part + 3) * UNIT)
    )
    return address + start[:, None]


@triton.jit
def span_relocation_kernel(
    target_keys,
    target_values,
    target_starts,
    target_scales,
    blocks,
    spans,
    tile_spans,
    donors,
    cos_table,
    sin_table,
    key_block,
    key_token,
    key_head,
    value_block,
    value_token,
    value_head,
    LAYERS: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    START: tl.constexpr,
    SIZE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    TABLE_BLOCK: tl.constexpr,
    SOURCE_UNIT: tl.constexpr,
    TARGET_UNIT: tl.constexpr,
    LARGEST: tl.constexpr,
    RESCALE_KEYS: tl.constexpr,
    RESCALE_VALUES: tl.constexpr,
    ROWS: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    BEFORE_PADDED: tl.constexpr,
    AFTER_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
):
    HALF: tl.constexpr = SIZE // 2
    tile, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    # The columns of ``spans``: first place, length, first tile, donor, first token there, shift.
    span = spans + tl.load(tile_spans + tile) * 6
    row = (tile - tl.load(span + 2)) * ROWS + tl.arange(0, ROWS)
    offset, head = row // HEADS, (row % HEADS).to(tl.int64)
    inside = offset < tl.load(span + 1)
    slots = slots_at(blocks, tl.load(span) + offset, inside, TABLE_BLOCK)
    tokens = (tl.load(span + 4) + offset).to(tl.int64)
    donor = donors + tl.load(span + 3) * 8
    angles = cos_table + tl.load(span + 5) * HALF, sin_table + tl.load(span + 5) * HALF

    taken_keys = _donor_rows(donor, target_keys.dtype.element_ty, layer, tokens, head, SOURCE_UNIT)
    start = tl.load(target_starts + layer) * TARGET_UNIT
    given_keys = target_keys + row_starts(start, slots, head, key_block, key_token, key_head, KEY_BLOCK)
    taken_values, given_values = taken_keys, given_keys
    if VALUE_DIM > 0:
        taken_values = _donor_rows(donor + 4, target_keys.dtype.element_ty, layer, tokens, head, SOURCE_UNIT)
        start = tl.load(target_starts + LAYERS + layer) * TARGET_UNIT
        given_values = target_values + row_starts(start, slots, head, value_block, value_token, value_head, VALUE_BLOCK)
    key_inverse, value_inverse = 1.0, 1.0
    if LARGEST > 0:
        key_inverse = tl.load(target_scales + 2 * LAYERS + layer)
        value_inverse = tl.load(target_scales + 3 * LAYERS + layer)
    nowhere = tl.full((ROWS, 1), 0, tl.int32)  # One shift for all rows of a span.
    move_rows(
        taken_keys,
        given_keys,
        taken_values,
        given_values,
        angles[0] + nowhere,
        angles[1] + nowhere,
        1.0,
        key_inverse,
        1.0,
        value_inverse,
        inside[:, None],
        KEY_DIM,
        VALUE_DIM,
        START,
        SIZE,
        INTERLEAVED,
        LARGEST,
        RESCALE_KEYS,
        RESCALE_VALUES,
        ROWS,
        HALF_PADDED,
        BEFORE_PADDED,
        AFTER_PADDED,
        VALUE_PADDED,
    )


def relocate_spans_with_triton(
    donors: Sequence[DonorKv],
    span_donors: Indices,
    span_tokens: Indices,
    shifts: Indices,
    places: Places,
    target: PagedKv,
    rotation: Rotation,
) -> None:
    """Same as :func:`semblend_core.kv.span_relocation.relocate_spans`, without its checks: one launch.

    Per span: the index of its donor, its first token there, and its shift.
    """
    grid, arguments = launch_arguments(donors, span_donors, span_tokens, shifts, places, target, rotation)
    with torch.cuda.device(target.device) if target.device.type == "cuda" else nullcontext():
        span_relocation_kernel[grid](**arguments, num_warps=WARPS, **COMPILE_OPTIONS)


def launch_arguments(
    donors: Sequence[DonorKv],
    span_donors: Indices,
    span_tokens: Indices,
    shifts: Indices,
    places: Places,
    target: PagedKv,
    rotation: Rotation,
) -> tuple[tuple[int, int], dict[str, Any]]:
    """The launch's grid, and the kernel's arguments by name."""
    _, _, heads, key_dim = target.keys[0].shape
    target_values = target.values or target.keys
    value_dim = target.values[0].shape[3] if target.values else 0
    rows = rows_per_program(max(key_dim, value_dim) * target.dtype.itemsize, TILE_BYTES)
    if int(places.lengths.sum(dtype=np.int64)) * heads >= 2**31:
        raise InvalidKvError("these are too many tokens for one launch: split the spans")
    tile_spans, first_tiles = tiles(places.lengths * heads, rows)
    distinct, shift_rows = np.unique(shifts, return_inverse=True)
    columns = (places.starts, places.lengths, first_tiles, span_donors, span_tokens, shift_rows)
    span_table = np.stack(columns, axis=1, dtype=np.int32, casting="same_kind")
    donor_table, unit = _donor_table(donors)
    cos_sin = (table.numpy() for table in rotation.cos_sin(distinct))
    parts: tuple[npt.NDArray[Any], ...] = (
        target.layer_starts,
        target.scale_table,
        places.blocks,
        span_table,
        tile_spans,
        donor_table,
        *cos_sin,
    )
    names = ("target_starts", "target_scales", "blocks", "spans", "tile_spans", "donors", "cos_table", "sin_table")
    ones = (1.0,) * target.layers
    arguments = {
        "target_keys": target.keys[0],
        "target_values": target_values[0],
        **dict(zip(names, upload(parts, target.device), strict=True)),
        "LAYERS": target.layers,
        "HEADS": heads,
        **row_constants(key_dim, value_dim, rotation),
        "KEY_BLOCK": block_to_divide_by(target.keys),
        "VALUE_BLOCK": block_to_divide_by(target_values),
        "TABLE_BLOCK": places.block_size,
        "SOURCE_UNIT": unit,
        "TARGET_UNIT": target.layer_unit,
        "LARGEST": FP8_LARGEST.get(target.dtype, 0.0),
        "RESCALE_KEYS": (target.key_scales or ones) != ones,
        "RESCALE_VALUES": (target.value_scales or ones) != ones,
        "ROWS": rows,
    }
    for part, views in (("key", target.keys), ("value", target_values)):
        block, token, head, _ = views[0].stride()
        arguments |= {f"{part}_block": block, f"{part}_token": token, f"{part}_head": head}
    return (tile_spans.size, target.layers), arguments


def _donor_table(donors: Sequence[DonorKv]) -> tuple[Indices, int]:
    """[donors, 8]: address and strides of keys and of values; and the elements that its strides are counted in.

    Where everything begins at a multiple of 16 bytes the unit says so, and the kernel reads as much at once.
    """
    table = np.array(
        [[*_place(donor.keys), *_place(donor.keys if donor.values is None else donor.values)] for donor in donors],
        np.int64,
    )
    strides = table.reshape(-1, 2, 4)[:, :, 1:]
    widest = _WIDEST_LOAD // donors[0].keys.dtype.itemsize
    aligned = not (table[:, ::4] % _WIDEST_LOAD).any() and not (strides % widest).any()
    unit = widest if aligned else 1
    strides //= unit
    return table, unit


def _place(part: Tensor) -> tuple[int, int, int, int]:
    # Of a dimension of one, torch may give any stride.
    layer, token, head = (step if size > 1 else 0 for size, step in zip(part.shape[:3], part.stride(), strict=False))
    return part.data_ptr(), layer, token, head
