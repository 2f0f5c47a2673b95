# Kernels are written in Triton's language: its values have no Python types, its constants are spelled in capitals.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""Relocation as one Triton kernel: gather from paged slots, turn the keys, scatter into paged slots.

A program moves some rows of one layer; a row is one token's key and value of one head. What a row goes through is in
triton_rows.py, with the bits of the reference in torch_relocation.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl

from semblend_core.kv.donor_kv import InvalidKvError
from semblend_core.kv.layout import FP8_LARGEST, PagedKv
from semblend_core.kv.moves import UploadedMoves, upload
from semblend_core.kv.torch_relocation import rescaled
from semblend_core.kv.triton_rows import (
    COMPILE_OPTIONS,
    WARPS,
    block_to_divide_by,
    move_rows,
    row_constants,
    row_starts,
    rows_per_program,
)

TILE_BYTES = 8192
"""Bytes of keys, and again of values, that one program moves; benchmarks/relocation.py sweeps it."""


@triton.jit(do_not_specialize=["all_rows"])  # Or some number of tokens would wait for a compiler.
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
    layer = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < all_rows
    token, head = row // HEADS, (row % HEADS).to(tl.int64)
    taken = tl.load(source_slots + token, mask=is_row, other=0).to(tl.int64)
    given = tl.load(target_slots + token, mask=is_row, other=0).to(tl.int64)
    # The units are constants: they tell the compiler that every layer begins at a 16-byte boundary.
    start = tl.load(source_starts + layer) * SOURCE_UNIT
    taken_keys = source_keys + row_starts(
        start, taken, head, source_key_block, source_key_token, source_key_head, SOURCE_KEY_BLOCK
    )
    start = tl.load(target_starts + layer) * TARGET_UNIT
    given_keys = target_keys + row_starts(
        start, given, head, target_key_block, target_key_token, target_key_head, TARGET_KEY_BLOCK
    )
    taken_values, given_values = taken_keys, given_keys
    if VALUE_DIM > 0:
        start = tl.load(source_starts + LAYERS + layer) * SOURCE_UNIT
        taken_values = source_values + row_starts(
            start, taken, head, source_value_block, source_value_token, source_value_head, SOURCE_VALUE_BLOCK
        )
        start = tl.load(target_starts + LAYERS + layer) * TARGET_UNIT
        given_values = target_values + row_starts(
            start, given, head, target_value_block, target_value_token, target_value_head, TARGET_VALUE_BLOCK
        )
    key_scale, key_inverse, value_scale, value_inverse = 1.0, 1.0, 1.0, 1.0
    if LARGEST > 0:
        key_scale, key_inverse = tl.load(source_scales + layer), tl.load(target_scales + 2 * LAYERS + layer)
        value_scale = tl.load(source_scales + LAYERS + layer)
        value_inverse = tl.load(target_scales + 3 * LAYERS + layer)
    shift = tl.load(shift_rows + token, mask=is_row, other=0)[:, None] * HALF
    move_rows(
        taken_keys,
        given_keys,
        taken_values,
        given_values,
        cos_table + shift,
        sin_table + shift,
        key_scale,
        key_inverse,
        value_scale,
        value_inverse,
        is_row[:, None],
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
    constants = {
        "LAYERS": source.layers,
        "HEADS": heads,
        **row_constants(key_dim, value_dim, moves.rotation),
        "SOURCE_KEY_BLOCK": block_to_divide_by(source.keys),
        "SOURCE_VALUE_BLOCK": block_to_divide_by(source_values),
        "TARGET_KEY_BLOCK": block_to_divide_by(target.keys),
        "TARGET_VALUE_BLOCK": block_to_divide_by(target_values),
        "SOURCE_UNIT": source.layer_unit,
        "TARGET_UNIT": target.layer_unit,
        "LARGEST": FP8_LARGEST.get(source.dtype, 0.0),
        "RESCALE_KEYS": rescaled(source, target, 0),
        "RESCALE_VALUES": rescaled(source, target, 1),
        "ROWS": rows_per_program(max(key_dim, value_dim) * source.dtype.itemsize, tile_bytes),
    }
    return arguments, constants
