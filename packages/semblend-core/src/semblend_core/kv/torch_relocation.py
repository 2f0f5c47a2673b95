"""Relocation in plain torch, layer by layer: the definition of what the kernel does, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from semblend_core.kv.layout import FP8_LARGEST, PagedKv, narrow
from semblend_core.kv.moves import UploadedMoves
from semblend_core.kv.rotation import Rotation, turn_pairs


def relocate_with_torch(source: PagedKv, target: PagedKv, moves: UploadedMoves) -> None:
    """Same as :func:`semblend_core.kv.relocation.relocate`, without its checks."""
    taken = _block_and_offset(moves.source_slots, source)
    given = _block_and_offset(moves.target_slots, target)
    rows = moves.shift_rows.long()
    cos, sin = (table[rows].unsqueeze(1) for table in (moves.cos, moves.sin))  # The same for every head.
    for layer in range(source.layers):
        read, write = (pool.scale_table[:, layer].tolist() for pool in (source, target))
        keys = _gather(source.keys[layer], taken)
        scales = (read[0], write[2]) if _is_fp8(source) else None
        _scatter(
            target.keys[layer], given, _move_keys(keys, cos, sin, moves.rotation, scales, rescaled(source, target, 0))
        )
        if source.values:
            values = _gather(source.values[layer], taken)
            if rescaled(source, target, 1):
                values = narrow(values.to(torch.float32) * read[1] * write[3], values.dtype)
            _scatter(target.values[layer], given, values)


def rescaled(source: PagedKv, target: PagedKv, part: int) -> bool:
    """Whether ``part`` (0 keys, 1 values) is stored under another scale in the target; if not, its bytes are copied."""
    scales = [(pool.key_scales, pool.value_scales)[part] or (1.0,) * pool.layers for pool in (source, target)]
    return scales[0] != scales[1]


def _move_keys(
    keys: Tensor, cos: Tensor, sin: Tensor, rotation: Rotation, scales: tuple[float, float] | None, all_change: bool
) -> Tensor:
    moved = keys
    if all_change and scales is not None:
        moved = narrow(keys.to(torch.float32) * scales[0] * scales[1], keys.dtype)
    turning = slice(rotation.start, rotation.start + rotation.size)
    wide = keys[..., turning].to(torch.float32)
    if scales is None:
        turned = turn_pairs(wide, cos, sin, interleaved=rotation.interleaved)
    else:
        turned = turn_pairs(wide * scales[0], cos, sin, interleaved=rotation.interleaved) * scales[1]
    moved[..., turning] = narrow(turned, keys.dtype)
    return moved


def _is_fp8(pool: PagedKv) -> bool:
    return pool.dtype in FP8_LARGEST


def _block_and_offset(slots: Tensor, pool: PagedKv) -> tuple[Tensor, Tensor]:
    wide = slots.long()
    return wide // pool.block_size, wide % pool.block_size


def _gather(view: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
    return _indexable(view)[at].view(view.dtype)


def _scatter(view: Tensor, at: tuple[Tensor, Tensor], rows: Tensor) -> None:
    _indexable(view)[at] = _indexable(rows)


def _indexable(view: Tensor) -> Tensor:
    """Index ops know no fp8, and need not: they move bytes."""
    return view.view(torch.uint8) if view.dtype in FP8_LARGEST else view
