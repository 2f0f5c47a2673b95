# Kernels are written in Triton's language: its values have no Python types, its constants are spelled in capitals.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""What the KV kernels share: rows of a pool, a row being one token's key or value of one head.

Rows are read and written in 16-byte pieces where the layout allows, and addresses are int64: pools exceed 2**31
elements. Multiplications and additions stay apart (``COMPILE_OPTIONS``), so results have the bits of the references in
torch; the kernels wait for memory anyway.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from semblend_core.kv.rotation import Rotation

WARPS = 4
COMPILE_OPTIONS = {"enable_fp_fusion": False}
"""Every operation is rounded by itself, as torch does it."""


@triton.jit
def row_starts(layer_start, slots, heads, block, token, head, BLOCK: tl.constexpr):
    """Element offset of each row from the first layer's view, with the strides of block, token and head.

    BLOCK is the block size, or 0 where slots follow each other evenly and need no division.
    """
    start = slots * token if BLOCK == 0 else (slots // BLOCK) * block + (slots % BLOCK) * token
    return (layer_start + start + heads * head)[:, None]


@triton.jit
def slots_at(blocks, places, live, TABLE_BLOCK: tl.constexpr):
    """The slot of each place, a place being a token's index in the sequence that the table ``blocks`` is of.

    TABLE_BLOCK is the tokens of a block, or 0 where there is no table and a place is a slot.
    """
    if TABLE_BLOCK == 0:
        return places.to(tl.int64)
    block = tl.load(blocks + places // TABLE_BLOCK, mask=live, other=0).to(tl.int64)
    return block * TABLE_BLOCK + places % TABLE_BLOCK


@triton.jit
def load_rows(rows, live, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)[None, :]
    return tl.load(rows + columns, mask=live if PADDED == WIDTH else live & (columns < WIDTH))


@triton.jit
def store_rows(rows, stored, live, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)[None, :]
    tl.store(rows + columns, stored, mask=live if PADDED == WIDTH else live & (columns < WIDTH))


@triton.jit
def turned(first, second, cos, sin):
    """``turn_pairs`` of rotation.py, in its order of operations."""
    turned_first = tl.where(sin == 0, first, first * cos - second * sin)
    turned_second = tl.where(sin == 0, second, second * cos + first * sin)
    return turned_first, turned_second


@triton.jit
def narrow(wide, dtype: tl.constexpr, LARGEST: tl.constexpr):
    """``narrow`` of layout.py; LARGEST is where fp8 saturates, and 0 for other types."""
    if LARGEST > 0:
        # What is not a number stays so, as with torch's clamp.
        wide = tl.maximum(wide, -LARGEST, propagate_nan=tl.PropagateNan.ALL)
        wide = tl.minimum(wide, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return wide.to(dtype)


@triton.jit
def _rescale(stored, scale, inverse, RESCALED: tl.constexpr, LARGEST: tl.constexpr):
    if RESCALED:
        return narrow(stored.to(tl.float32) * scale * inverse, stored.dtype, LARGEST)
    return stored


@triton.jit
def _turn(first, second, cos, sin, scale, inverse, SCALED: tl.constexpr):
    first, second = first.to(tl.float32), second.to(tl.float32)
    if SCALED:
        first, second = first * scale, second * scale
    first, second = turned(first, second, cos, sin)
    if SCALED:
        first, second = first * inverse, second * inverse
    return first, second


@triton.jit
def move_rows(
    taken_keys,
    given_keys,
    taken_values,
    given_values,
    cos_rows,
    sin_rows,
    key_scale,
    key_inverse,
    value_scale,
    value_inverse,
    live,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    START: tl.constexpr,
    SIZE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    LARGEST: tl.constexpr,
    RESCALE_KEYS: tl.constexpr,
    RESCALE_VALUES: tl.constexpr,
    ROWS: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    BEFORE_PADDED: tl.constexpr,
    AFTER_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
):
    """Copy the values and turn the keys of some rows, each argument a column of addresses [ROWS, 1]."""
    HALF: tl.constexpr = SIZE // 2
    AFTER: tl.constexpr = KEY_DIM - START - SIZE
    SCALED: tl.constexpr = LARGEST > 0
    # All loads, then the arithmetic, then all stores: a store between loads would make the later ones wait.
    if VALUE_DIM > 0:
        values = load_rows(taken_values, live, VALUE_DIM, VALUE_PADDED)
    if START > 0:
        before = load_rows(taken_keys, live, START, BEFORE_PADDED)
    if AFTER > 0:
        after = load_rows(taken_keys + (START + SIZE), live, AFTER, AFTER_PADDED)
    if INTERLEAVED:
        pairs = load_rows(taken_keys + START, live, SIZE, 2 * HALF_PADDED)
        first, second = tl.split(tl.reshape(pairs, (ROWS, HALF_PADDED, 2)))
    else:
        first = load_rows(taken_keys + START, live, HALF, HALF_PADDED)
        second = load_rows(taken_keys + (START + HALF), live, HALF, HALF_PADDED)
    cos = load_rows(cos_rows, live, HALF, HALF_PADDED)
    sin = load_rows(sin_rows, live, HALF, HALF_PADDED)

    first, second = _turn(first, second, cos, sin, key_scale, key_inverse, SCALED)

    stored: tl.constexpr = given_keys.dtype.element_ty
    if INTERLEAVED:
        pairs = tl.reshape(tl.join(first, second), (ROWS, 2 * HALF_PADDED))
        store_rows(given_keys + START, narrow(pairs, stored, LARGEST), live, SIZE, 2 * HALF_PADDED)
    else:
        store_rows(given_keys + START, narrow(first, stored, LARGEST), live, HALF, HALF_PADDED)
        store_rows(given_keys + (START + HALF), narrow(second, stored, LARGEST), live, HALF, HALF_PADDED)
    if START > 0:
        before = _rescale(before, key_scale, key_inverse, RESCALE_KEYS, LARGEST)
        store_rows(given_keys, before, live, START, BEFORE_PADDED)
    if AFTER > 0:
        after = _rescale(after, key_scale, key_inverse, RESCALE_KEYS, LARGEST)
        store_rows(given_keys + (START + SIZE), after, live, AFTER, AFTER_PADDED)
    if VALUE_DIM > 0:
        values = _rescale(values, value_scale, value_inverse, RESCALE_VALUES, LARGEST)
        store_rows(given_values, values, live, VALUE_DIM, VALUE_PADDED)


def row_constants(key_dim: int, value_dim: int, rotation: Rotation) -> dict[str, int]:
    """The shape of a row, as the kernels' compile-time constants."""
    return {
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "START": rotation.start,
        "SIZE": rotation.size,
        "INTERLEAVED": rotation.interleaved,
        "HALF_PADDED": triton.next_power_of_2(rotation.size // 2),
        "BEFORE_PADDED": triton.next_power_of_2(rotation.start),
        "AFTER_PADDED": triton.next_power_of_2(key_dim - rotation.start - rotation.size),
        "VALUE_PADDED": triton.next_power_of_2(value_dim),
    }


def rows_per_program(row_bytes: int, tile_bytes: int) -> int:
    return 1 << max(0, (tile_bytes // row_bytes).bit_length() - 1)


def block_to_divide_by(views: Sequence[Tensor]) -> int:
    """The block size, or 0 where slots are evenly spaced across blocks and need no division."""
    blocks, block_size, _, _ = views[0].shape
    block_stride, token_stride, _, _ = views[0].stride()
    return 0 if blocks == 1 or block_stride == block_size * token_stride else int(block_size)


class Launch:
    """A kernel bound to its arguments, all but one integer, which the kernel must not specialise on.

    Triton finds the compiled kernel by all arguments, and asks the driver about every tensor: both take the host longer
    than the launch itself. Here the first is done once, also for later launches whose arguments are of the same kind,
    and tensors go as plain addresses. They are kept, so what was found stays right.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        arguments: dict[str, Any],
        varying: str,
        options: dict[str, Any],
    ) -> None:
        self._kernel, self._grid, self._arguments, self._options = kernel, grid, arguments, options
        self._varying = varying
        names = kernel.arg_names
        plain = [_plain(arguments.get(name)) for name in names]
        at = names.index(varying)
        self._before, self._after = tuple(plain[:at]), tuple(plain[at + 1 :])
        self._compiled: Any = None

    def __call__(self, value: int, stream: int | None = None) -> None:
        """``stream``: as :func:`current_stream` gives it. None, in the interpreter, is none."""
        if self._compiled is None:
            kind = _kind(self._kernel, self._arguments, self._options)
            if kind not in _found:
                compiled = self._kernel[self._grid](**self._arguments, **{self._varying: value}, **self._options)
                if compiled is not None:  # The interpreter compiles nothing.
                    _found[kind] = compiled
                    self._compiled = compiled[self._grid]
                return
            self._compiled = _found[kind][self._grid]
        self._compiled(*self._before, value, *self._after, stream=stream)


_found: dict[Hashable, Any] = {}
"""Compiled kernels by the kind of their arguments."""


def _plain(argument: Any) -> Any:
    return argument.data_ptr() if isinstance(argument, Tensor) else argument


def _kind(kernel: Any, arguments: dict[str, Any], options: dict[str, Any]) -> Hashable:
    """All that Triton may look at to choose the compiled kernel, and no less."""
    free = {parameter.name for parameter in getattr(kernel, "params", ()) if parameter.do_not_specialize}
    kinds: list[Hashable] = [kernel, *options.items()]
    for name, argument in arguments.items():
        if isinstance(argument, Tensor):
            kinds.append((name, argument.device, argument.dtype, argument.data_ptr() % 16, _is_small(argument)))
        elif name in free:
            kinds.append((name, type(argument), -(2**31) <= argument < 2**31))
        else:
            kinds.append((name, type(argument), argument))
    return tuple(kinds)


def _is_small(tensor: Tensor) -> bool:
    """What Triton asks on AMD's GPUs alone: whether 31 bits reach all of it."""
    return torch.version.hip is not None and tensor.untyped_storage().nbytes() < 2**31


@contextmanager
def current_stream(device: torch.device) -> Iterator[int | None]:
    """The device's current stream for launches within the context, whose device it is."""
    if device.type != "cuda":
        yield None
        return
    with torch.cuda.device(device):
        yield torch.cuda.current_stream(device).cuda_stream
