"""Relocation in plain torch, layer by layer: the definition of what the kernel does, on any device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from semblend_core.kv.donor_kv import indexable
from semblend_core.kv.layout import FP8_LARGEST, PagedKv, narrow
from semblend_core.kv.moves import Moves, upload
from semblend_core.kv.rotation import Rotation, turn_pairs


def relocate_with_torch(source: PagedKv, target: PagedKv, moves: Moves, rotation: Rotation) -> None:
    """Same as :func:`semblend_core.kv.relocation.relocate`, without its checks."""
    tables = (table.numpy() for table in rotation.cos_sin(moves.shifts))
    indices = (part.astype(np.int64) for part in (moves.source_slots, moves.target_slots, moves.shift_rows))
    source_slots, target_slots, rows, *angles = upload((*indices, *tables), target.device)
    taken, given = _block_and_offset(source_slots, source), _block_and_offset(target_slots, target)
    cos, sin = (table[rows].unsqueeze(1) for table in angles)  # The same for every head.
    for layer in range(source.layers):
        read, write = (pool.scale_table[:, layer].tolist() for pool in (source, target))
        keys = _gather(source.keys[layer], taken)
        scales = (read[0], write[2]) if _is_fp8(source) else None
        moved = _move_keys(keys, cos, sin, rotation, scales, _rescaled(source, target, 0))
        _scatter(target.keys[layer], given, moved)
        if source.values:
            values = _gather(source.values[layer], taken)
            if _rescaled(source, target, 1):
                values = narrow(values.to(torch.float32) * read[1] * write[3], values.dtype)
            _scatter(target.values[layer], given, values)


def _rescaled(source: PagedKv, target: PagedKv, part: int) -> bool:
    """Whether ``part`` (0 keys, 1 values) is stored under another scale in the target; if not, its bytes are copied."""
    return bool((source.scale_table[part] != target.scale_table[part]).any())


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
    return indexable(view)[at].view(view.dtype)


def _scatter(view: Tensor, at: tuple[Tensor, Tensor], rows: Tensor) -> None:
    indexable(view)[at] = indexable(rows)
