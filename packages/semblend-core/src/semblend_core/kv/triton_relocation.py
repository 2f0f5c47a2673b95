# Kernels are written in Triton's language: its values have no Python types, its constants are spelled in capitals.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""Relocation as one Triton kernel: gather from paged slots, turn the keys, scatter into paged slots.

A program moves some rows of one layer; a row is one token's key and value of one head. All its loads are issued before
its first store, rows are read and written in 16-byte pieces where the layout allows, and addresses are int64: pools
exceed 2**31 elements. Multiplications and additions stay apart (``COMPILE_OPTIONS``), so results have the bits
of the reference in torch_relocation.py; the kernel waits for memory anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from semblend_core.kv.donor_kv import InvalidKvError
from semblend_core.kv.layout import FP8_LARGEST, PagedKv
from semblend_core.kv.moves import UploadedMoves, upload
from semblend_core.kv.torch_relocation import rescaled

TILE_BYTES = 8192
"""Bytes of keys, and again of values, that one program moves; benchmarks/relocation.py sweeps it."""
WARPS = 4
COMPILE_OPTIONS = {"enable_fp_fusion": False}
"""Every operation is rounded by itself, as torch does it."""


@triton.jit
def _row_starts(layer_start, slots, heads, block, token, head, BLOCK: tl.constexpr):
    """Element offset of each row from the first layer's view, with the strides of block, token and head.

    BLOCK is the block size, or 0 where slots follow each other evenly and need no division.
    """
    start = slots * token if BLOCK == 0 else (slots // BLOCK) * block + (slots % BLOCK) * token
    return (layer_start + start + heads * head)[:, None]


@triton.jit
def _narrow(wide, dtype: tl.constexpr, LARGEST: tl.constexpr):
    if LARGEST > 0:
        # What is not a number stays so, as with torch's clamp.
        wide = tl.maximum(wide, -LARGEST, propagate_nan=tl.PropagateNan.ALL)
        wide = tl.minimum(wide, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return wide.to(dtype)


@triton.jit
def _load(rows, live, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)[None, :]
    return tl.load(rows + columns, mask=live if PADDED == WIDTH else live & (columns < WIDTH))


@triton.jit
def _store(rows, stored, live, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)[None, :]
    tl.store(rows + columns, stored, mask=live if PADDED == WIDTH else live & (columns < WIDTH))


@triton.jit
def _rescale(stored, scale, inverse, RESCALED: tl.constexpr, LARGEST: tl.constexpr):
    if RESCALED:
        return _narrow(stored.to(tl.float32) * scale * inverse, stored.dtype, LARGEST)
    return stored


@triton.jit
def _turn(first, second, cos, sin, scale, inverse, SCALED: tl.constexpr):
    first, second = first.to(tl.float32), second.to(tl.float32)
    if SCALED:
        first, second = first * scale, second * scale
    turned_first = tl.where(sin == 0, first, first * cos - second * sin)
    turned_second = tl.where(sin == 0, second, second * cos + first * sin)
    if SCALED:
        turned_first, turned_second = turned_first * inverse, turned_second * inverse
    return turned_first, turned_second


@triton.jit
def relocation_kernel(
    source_keys,
    target_keys,
    source_values,
    target_values,
    source_starts,
    target_starts,
    source_scales,
    target_scales,
    source_slots,
    target_slots,
    shift_rows,
    cos_table,
    sin_table,
    all_rows,
    source_key_block,
    source_key_token,
    source_key_head,
    target_key_block,
    target_key_token,
    target_key_head,
    source_value_block,
    source_value_token,
    source_value_head,
    target_value_block,
    target_value_token,
    target_value_head,
    LAYERS: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    START: tl.constexpr,
    SIZE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SOURCE_KEY_BLOCK: tl.constexpr,
    SOURCE_VALUE_BLOCK: tl.constexpr,
    TARGET_KEY_BLOCK: tl.constexpr,
    TARGET_VALUE_BLOCK: tl.constexpr,
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
    AFTER: tl.constexpr = KEY_DIM - START - SIZE
    SCALED: tl.constexpr = LARGEST > 0
    layer = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < all_rows
    live = is_row[:, None]
    token, head = row // HEADS, (row % HEADS).to(tl.int64)
    taken = tl.load(source_slots + token, mask=is_row, other=0).to(tl.int64)
    given = tl.load(target_slots + token, mask=is_row, other=0).to(tl.int64)
    # The units are constants: they tell the compiler that every layer begins at a 16-byte boundary.
    key_start = tl.load(source_starts + layer) * SOURCE_UNIT
    taken_keys = source_keys + _row_starts(
        key_start, taken, head, source_key_block, source_key_token, source_key_head, SOURCE_KEY_BLOCK
    )
    key_start = tl.load(target_starts + layer) * TARGET_UNIT
    given_keys = target_keys + _row_starts(
        key_start, given, head, target_key_block, target_key_token, target_key_head, TARGET_KEY_BLOCK
    )
    scale, inverse = 1.0, 1.0
    if SCALED:
        scale, inverse = tl.load(source_scales + layer), tl.load(target_scales + 2 * LAYERS + layer)

    # All loads, then the arithmetic, then all stores: a store between loads would make the later ones wait.
    if VALUE_DIM > 0:
        value_start = tl.load(source_starts + LAYERS + layer) * SOURCE_UNIT
        taken_values = source_values + _row_starts(
            value_start, taken, head, source_value_block, source_value_token, source_value_head, SOURCE_VALUE_BLOCK
        )
        value_start = tl.load(target_starts + LAYERS + layer) * TARGET_UNIT
        given_values = target_values + _row_starts(
            value_start, given, head, target_value_block, target_value_token, target_value_head, TARGET_VALUE_BLOCK
        )
        values = _load(taken_values, live, VALUE_DIM, VALUE_PADDED)
    if START > 0:
        before = _load(taken_keys, live, START, BEFORE_PADDED)
    if AFTER > 0:
        after = _load(taken_keys + (START + SIZE), live, AFTER, AFTER_PADDED)
    if INTERLEAVED:
        pairs = _load(taken_keys + START, live, SIZE, 2 * HALF_PADDED)
        first, second = tl.split(tl.reshape(pairs, (ROWS, HALF_PADDED, 2)))
    else:
        first = _load(taken_keys + START, live, HALF, HALF_PADDED)
        second = _load(taken_keys + (START + HALF), live, HALF, HALF_PADDED)
    shift = tl.load(shift_rows + token, mask=is_row, other=0)[:, None] * HALF
    cos = _load(cos_table + shift, live, HALF, HALF_PADDED)
    sin = _load(sin_table + shift, live, HALF, HALF_PADDED)

    first, second = _turn(first, second, cos, sin, scale, inverse, SCALED)

    stored: tl.constexpr = target_keys.dtype.element_ty
    if INTERLEAVED:
        turned = tl.reshape(tl.join(first, second), (ROWS, 2 * HALF_PADDED))
        _store(given_keys + START, _narrow(turned, stored, LARGEST), live, SIZE, 2 * HALF_PADDED)
    else:
        _store(given_keys + START, _narrow(first, stored, LARGEST), live, HALF, HALF_PADDED)
        _store(given_keys + (START + HALF), _narrow(second, stored, LARGEST), live, HALF, HALF_PADDED)
    if START > 0:
        _store(given_keys, _rescale(before, scale, inverse, RESCALE_KEYS, LARGEST), live, START, BEFORE_PADDED)
    if AFTER > 0:
        after = _rescale(after, scale, inverse, RESCALE_KEYS, LARGEST)
        _store(given_keys + (START + SIZE), after, live, AFTER, AFTER_PADDED)
    if VALUE_DIM > 0:
        if RESCALE_VALUES:
            value_scale = tl.load(source_scales + LAYERS + layer)
            value_inverse = tl.load(target_scales + 3 * LAYERS + layer)
            values = _rescale(values, value_scale, value_inverse, True, LARGEST)
        _store(given_values, values, live, VALUE_DIM, VALUE_PADDED)


def relocate_with_triton(
    source: PagedKv, target: PagedKv, moves: UploadedMoves, *, tile_bytes: int = TILE_BYTES, warps: int = WARPS
) -> None:
    """Same as :func:`semblend_core.kv.relocation.relocate`, without its checks: one launch."""
    arguments, constants = launch_arguments(source, target, moves, tile_bytes)
    if arguments["all_rows"] >= 2**31:
        raise InvalidKvError(f"{moves.moves.tokens} tokens are too many for one launch: split the moves")
    grid = (triton.cdiv(arguments["all_rows"], constants["ROWS"]), source.layers)
    with torch.cuda.device(target.device) if target.device.type == "cuda" else nullcontext():
        relocation_kernel[grid](**arguments, **constants, num_warps=warps, **COMPILE_OPTIONS)


def launch_arguments(
    source: PagedKv, target: PagedKv, moves: UploadedMoves, tile_bytes: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The kernel's arguments and its compile-time constants, by name."""
    _, _, heads, key_dim = source.keys[0].shape
    source_values, target_values = source.values or source.keys, target.values or target.keys
    # With each launch, on its own stream: a table that stayed there could be read by another stream too early.
    starts_and_scales = (source.layer_starts, target.layer_starts, source.scale_table, target.scale_table)
    source_starts, target_starts, source_scales, target_scales = upload(starts_and_scales, target.device)
    arguments = {
        "source_keys": source.keys[0],
        "target_keys": target.keys[0],
        "source_values": source_values[0],
        "target_values": target_values[0],
        "source_starts": source_starts,
        "target_starts": target_starts,
        "source_scales": source_scales,
        "target_scales": target_scales,
        "source_slots": moves.source_slots,
        "target_slots": moves.target_slots,
        "shift_rows": moves.shift_rows,
        "cos_table": moves.cos,
        "sin_table": moves.sin,
        "all_rows": moves.moves.tokens * heads,
    }
    for pool, views in (
        ("source_key", source.keys),
        ("target_key", target.keys),
        ("source_value", source_values),
        ("target_value", target_values),
    ):
        block, token, head, _ = views[0].stride()
        arguments |= {f"{pool}_block": block, f"{pool}_token": token, f"{pool}_head": head}
    value_dim = source.values[0].shape[3] if source.values else 0
    rotation = moves.rotation
    padded = {
        "HALF_PADDED": triton.next_power_of_2(rotation.size // 2),
        "BEFORE_PADDED": triton.next_power_of_2(rotation.start),
        "AFTER_PADDED": triton.next_power_of_2(key_dim - rotation.start - rotation.size),
        "VALUE_PADDED": triton.next_power_of_2(value_dim),
    }
    constants = {
        "LAYERS": source.layers,
        "HEADS": heads,
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "START": rotation.start,
        "SIZE": rotation.size,
        "INTERLEAVED": rotation.interleaved,
        "SOURCE_KEY_BLOCK": _block_to_divide_by(source.keys),
        "SOURCE_VALUE_BLOCK": _block_to_divide_by(source_values),
        "TARGET_KEY_BLOCK": _block_to_divide_by(target.keys),
        "TARGET_VALUE_BLOCK": _block_to_divide_by(target_values),
        "SOURCE_UNIT": source.layer_unit,
        "TARGET_UNIT": target.layer_unit,
        "LARGEST": FP8_LARGEST.get(source.dtype, 0.0),
        "RESCALE_KEYS": rescaled(source, target, 0),
        "RESCALE_VALUES": rescaled(source, target, 1),
        "ROWS": _rows_per_program(max(key_dim, value_dim) * source.dtype.itemsize, tile_bytes),
        **padded,
    }
    return arguments, constants


def _rows_per_program(row_bytes: int, tile_bytes: int) -> int:
    return 1 << max(0, (tile_bytes // row_bytes).bit_length() - 1)


def _block_to_divide_by(views: Sequence[Tensor]) -> int:
    """The block size, or 0 where slots are evenly spaced across blocks and need no division."""
    blocks, block_size, _, _ = views[0].shape
    block_stride, token_stride, _, _ = views[0].stride()
    return 0 if blocks == 1 or block_stride == block_size * token_stride else int(block_size)
