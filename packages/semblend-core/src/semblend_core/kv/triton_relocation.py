# Kernels are written in Triton's language: its values have no Python types, its constants are spelled in capitals.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""Relocation as one Triton kernel: read rows of donors or of a pool, turn the keys, scatter into paged slots.

A program moves some rows of one span and layer; a row is one token's key and value of one head. What a row goes through
is in triton_rows.py, with the bits of the reference in torch_relocation.py. Sources are allocations of their own: their
addresses and strides come in a table. The kernel finds the slots itself, so that nothing the host sends grows with the
tokens but the block tables and a number per program.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from semblend_core.kv.donor_kv import DonorKv, InvalidKvError
from semblend_core.kv.layout import FP8_LARGEST, WIDEST_LOAD, PagedKv
from semblend_core.kv.moves import Indices, upload
from semblend_core.kv.places import SpanMoves, tiles
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

TILE_BYTES = 4096
"""Bytes of keys, and again of values, that one program moves; benchmarks/relocation.py sweeps it."""


@triton.jit
def _source_rows(source, starts, element: tl.constexpr, layer, slots, heads, BLOCK: tl.constexpr, UNIT: tl.constexpr):
    """Addresses of rows; ``source`` is [address, and the strides of block, token and head in UNIT elements]."""
    address = tl.load(source).to(tl.pointer_type(element))
    if UNIT > 1:
        address = tl.multiple_of(address, 16)
    # The unit is a constant: it tells the compiler that every row begins at a 16-byte boundary.
    block, token, head = tl.load(source + 1) * UNIT, tl.load(source + 2) * UNIT, tl.load(source + 3) * UNIT
    return address + row_starts(tl.load(starts + layer) * UNIT, slots, heads, block, token, head, BLOCK)


@triton.jit
def relocation_kernel(
    target_keys,
    target_values,
    target_starts,
    target_scales,
    target_blocks,
    sources,
    source_starts,
    source_scales,
    source_blocks,
    spans,
    tile_spans,
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
    SOURCE_KEY_BLOCK: tl.constexpr,
    SOURCE_VALUE_BLOCK: tl.constexpr,
    SOURCE_TABLE_BLOCK: tl.constexpr,
    SOURCE_UNIT: tl.constexpr,
    TARGET_KEY_BLOCK: tl.constexpr,
    TARGET_VALUE_BLOCK: tl.constexpr,
    TARGET_TABLE_BLOCK: tl.constexpr,
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
    # The columns of ``spans``: first place at the target, length, first tile, source, first place there, shift.
    span = spans + tl.load(tile_spans + tile) * 6
    row = (tile - tl.load(span + 2)) * ROWS + tl.arange(0, ROWS)
    offset, head = row // HEADS, (row % HEADS).to(tl.int64)
    inside = offset < tl.load(span + 1)
    given = slots_at(target_blocks, tl.load(span) + offset, inside, TARGET_TABLE_BLOCK)
    taken = slots_at(source_blocks, tl.load(span + 4) + offset, inside, SOURCE_TABLE_BLOCK)
    which = tl.load(span + 3).to(tl.int64)
    source, starts = sources + which * 8, source_starts + which * 2 * LAYERS
    angles = cos_table + tl.load(span + 5) * HALF, sin_table + tl.load(span + 5) * HALF

    element: tl.constexpr = target_keys.dtype.element_ty
    taken_keys = _source_rows(source, starts, element, layer, taken, head, SOURCE_KEY_BLOCK, SOURCE_UNIT)
    start = tl.load(target_starts + layer) * TARGET_UNIT
    given_keys = target_keys + row_starts(start, given, head, key_block, key_token, key_head, TARGET_KEY_BLOCK)
    taken_values, given_values = taken_keys, given_keys
    if VALUE_DIM > 0:
        taken_values = _source_rows(
            source + 4, starts + LAYERS, element, layer, taken, head, SOURCE_VALUE_BLOCK, SOURCE_UNIT
        )
        start = tl.load(target_starts + LAYERS + layer) * TARGET_UNIT
        given_values = target_values + row_starts(
            start, given, head, value_block, value_token, value_head, TARGET_VALUE_BLOCK
        )
    key_scale, key_inverse, value_scale, value_inverse = 1.0, 1.0, 1.0, 1.0
    if LARGEST > 0:
        key_scale, key_inverse = tl.load(source_scales + layer), tl.load(target_scales + 2 * LAYERS + layer)
        value_scale = tl.load(source_scales + LAYERS + layer)
        value_inverse = tl.load(target_scales + 3 * LAYERS + layer)
    nowhere = tl.full((ROWS, 1), 0, tl.int32)  # One shift for all rows of a span.
    move_rows(
        taken_keys,
        given_keys,
        taken_values,
        given_values,
        angles[0] + nowhere,
        angles[1] + nowhere,
        key_scale,
        key_inverse,
        value_scale,
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


def relocate_with_triton(
    source: PagedKv | Sequence[DonorKv], target: PagedKv, moves: SpanMoves, rotation: Rotation
) -> None:
    """What ``relocate`` and ``relocate_spans`` do, without their checks: one launch."""
    launch(*launch_arguments(source, target, moves, rotation), target.device)


def launch(grid: tuple[int, int], arguments: dict[str, Any], device: torch.device, warps: int = WARPS) -> None:
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        relocation_kernel[grid](**arguments, num_warps=warps, **COMPILE_OPTIONS)


def launch_arguments(
    source: PagedKv | Sequence[DonorKv],
    target: PagedKv,
    moves: SpanMoves,
    rotation: Rotation,
    tile_bytes: int | None = None,
) -> tuple[tuple[int, int], dict[str, Any]]:
    """The launch's grid, and the kernel's arguments by name; what the device needs to know is one upload.

    It is sent with each launch, on its own stream: a table that stayed there could be read by another stream too early.
    """
    sources = _of_pool(source) if isinstance(source, PagedKv) else _of_donors(source)
    _, _, heads, key_dim = target.keys[0].shape
    target_values = target.values or target.keys
    value_dim = target.values[0].shape[3] if target.values else 0
    rows = rows_per_program(max(key_dim, value_dim) * target.dtype.itemsize, tile_bytes or TILE_BYTES)
    if moves.tokens * heads >= 2**31:
        raise InvalidKvError(f"{moves.tokens} tokens are too many for one launch: split them")
    tile_spans, first_tiles = tiles(moves.lengths * heads, rows)
    shifts, shift_rows = np.unique(moves.shifts, return_inverse=True)
    columns = (moves.target_starts, moves.lengths, first_tiles, moves.sources, moves.source_starts, shift_rows)
    parts: dict[str, npt.NDArray[Any]] = {
        "target_starts": target.layer_starts,
        "target_scales": target.scale_table,
        "sources": sources.table,
        "source_starts": sources.starts,
        "source_scales": sources.scales,
        "spans": np.stack(columns, axis=1, dtype=np.int32, casting="same_kind"),
        "tile_spans": tile_spans,
        **dict(zip(("cos_table", "sin_table"), (table.numpy() for table in rotation.cos_sin(shifts)), strict=True)),
    }
    there: dict[str, Tensor] = {}
    for name, table in (("target_blocks", moves.target_blocks), ("source_blocks", moves.source_blocks)):
        if isinstance(table, Tensor):
            there[name] = table
        else:
            parts[name] = table
    arguments = {
        **there,
        "target_keys": target.keys[0],
        "target_values": target_values[0],
        **dict(zip(parts, upload(tuple(parts.values()), target.device), strict=True)),
        "LAYERS": target.layers,
        "HEADS": heads,
        **row_constants(key_dim, value_dim, rotation),
        "SOURCE_KEY_BLOCK": sources.key_block,
        "SOURCE_VALUE_BLOCK": sources.value_block,
        "SOURCE_TABLE_BLOCK": moves.source_block_size,
        "SOURCE_UNIT": sources.unit,
        "TARGET_KEY_BLOCK": block_to_divide_by(target.keys),
        "TARGET_VALUE_BLOCK": block_to_divide_by(target_values),
        "TARGET_TABLE_BLOCK": moves.target_block_size,
        "TARGET_UNIT": target.layer_unit,
        "LARGEST": FP8_LARGEST.get(target.dtype, 0.0),
        # Where keys or values keep their scale, their bytes are copied.
        "RESCALE_KEYS": bool((sources.scales[0] != target.scale_table[0]).any()),
        "RESCALE_VALUES": bool((sources.scales[1] != target.scale_table[1]).any()),
        "ROWS": rows,
    }
    for part, views in (("key", target.keys), ("value", target_values)):
        block, token, head, _ = views[0].stride()
        arguments |= {f"{part}_block": block, f"{part}_token": token, f"{part}_head": head}
    return (tile_spans.size, target.layers), arguments


class CopyOut:
    """Copies sequences out of a pool, as they are. What all copies have in common goes to the device once.

    A prompt is kept while its first token is on the way: where the GPU is faster than its host, the host's time counts.
    """

    def __init__(self, pool: PagedKv, rotation: Rotation) -> None:
        self._blocks, self._block_size, self._device = pool.keys[0].shape[0], pool.block_size, pool.device
        one, none = np.ones(1, np.int32), np.zeros(1, np.int32)
        target = PagedKv.from_donor(pool.empty_donor(1))
        whole = SpanMoves(none, one, none, none, np.zeros(1, np.int64), none, 0, none, pool.block_size)
        _, self._arguments = launch_arguments(pool, target, whole, rotation)
        self._starts_of_one = target.layer_starts
        if pool.device.type == "cuda":
            torch.cuda.current_stream(pool.device).synchronize()  # From now on other streams may read what was sent.

    def __call__(self, blocks: npt.NDArray[np.integer], donor: DonorKv) -> None:
        """Fill ``donor``, which is dense, with the first tokens of the sequence that lies in these blocks."""
        used = blocks[: -(-donor.tokens // self._block_size)]
        if used.size * self._block_size < donor.tokens or used.min() < 0 or used.max() >= self._blocks:
            raise InvalidKvError(
                f"{donor.tokens} tokens do not lie in {blocks.size} blocks of the pool's {self._blocks}"
            )
        arguments = self._arguments
        rows = donor.tokens * arguments["HEADS"]
        if rows >= 2**31:
            raise InvalidKvError(f"{donor.tokens} tokens are too many for one launch")
        tiles_needed = -(-rows // arguments["ROWS"])
        changing: dict[str, npt.NDArray[Any]] = {
            "target_starts": self._starts_of_one * donor.tokens,
            "spans": np.array([[0, donor.tokens, 0, 0, 0, 0]], np.int32),
            "tile_spans": np.zeros(tiles_needed, np.int32),
            "source_blocks": used.astype(np.int32),
        }
        sent = dict(zip(changing, upload(tuple(changing.values()), self._device), strict=True))
        pointers = {"target_keys": donor.keys[0], "target_values": donor.keys[0]}
        if donor.values is not None:
            pointers["target_values"] = donor.values[0]
        launch((tiles_needed, arguments["LAYERS"]), arguments | sent | pointers, self._device)


@dataclass(frozen=True, slots=True, eq=False)
class _Sources:
    """Where KV is read: dense donors, or a pool."""

    table: Indices
    """[sources, 2, 4]: address, and the strides of block, token and head, of keys and then of values."""
    starts: Indices
    """[sources, 2, layers]: how far each layer's keys and values begin from the address."""
    unit: int
    """Elements that strides and starts are counted in: 16 bytes' worth where everything is aligned so, or 1."""
    scales: npt.NDArray[np.float32]
    key_block: int = 0
    value_block: int = 0

    @classmethod
    def aligned(cls, table: Indices, starts: Indices, itemsize: int, *rest: Any) -> _Sources:
        """The unit tells the kernel whether it may read 16 bytes at once."""
        widest = WIDEST_LOAD // itemsize
        addresses, strides = table[:, :, 0], table[:, :, 1:]
        uneven = (addresses % WIDEST_LOAD).any() or (strides % widest).any() or (starts % widest).any()
        unit = 1 if uneven else widest
        strides //= unit
        return cls(table, starts // unit, unit, *rest)


def _of_pool(pool: PagedKv) -> _Sources:
    parts = pool.keys, pool.values or pool.keys
    blocks = [block_to_divide_by(views) for views in parts]
    table: list[list[int]] = []
    for views, block in zip(parts, blocks, strict=True):
        (_, _, heads, _), (block_step, token, head, _) = views[0].shape, views[0].stride()
        # Of a dimension that is not stepped along, torch may give any stride.
        table.append([views[0].data_ptr(), block_step if block else 0, token, head if heads > 1 else 0])
    starts = pool.layer_starts * pool.layer_unit
    return _Sources.aligned(np.array([table], np.int64), starts, pool.dtype.itemsize, pool.scale_table, *blocks)


def _of_donors(donors: Sequence[DonorKv]) -> _Sources:
    pairs = [(donor.keys, donor.keys if donor.values is None else donor.values) for donor in donors]
    strides = np.array([[_strides(part) for part in pair] for pair in pairs], np.int64)
    table = np.zeros((len(pairs), 2, 4), np.int64)
    table[:, :, 0] = [[part.data_ptr() for part in pair] for pair in pairs]
    table[:, :, 2:] = strides[:, :, 1:]
    layers = donors[0].layers
    starts = strides[:, :, :1] * np.arange(layers)
    return _Sources.aligned(table, starts, donors[0].keys.dtype.itemsize, np.ones((4, layers), np.float32))


def _strides(part: Tensor) -> tuple[int, int, int]:
    """Of layer, token and head, in elements."""
    layer, token, head = (step if size > 1 else 0 for size, step in zip(part.shape[:3], part.stride(), strict=False))
    return layer, token, head
