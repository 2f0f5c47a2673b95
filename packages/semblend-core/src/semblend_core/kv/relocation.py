"""Moving KV between pools: keys turned to their new positions, values copied, every layer and span in one launch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import torch

from semblend_core.kv.donor_kv import InvalidKvError
from semblend_core.kv.layout import FP8_LARGEST, PagedKv
from semblend_core.kv.moves import Moves, SlotTable, UploadedMoves
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.torch_relocation import relocate_with_torch

__all__ = ["Moves", "SlotTable", "UploadedMoves", "relocate", "relocate_uploaded"]

_LOG = logging.getLogger(__name__)
_FP8_CAPABILITY = (8, 9)
"""First CUDA capability that converts fp8 in hardware; the kernel needs it for fp8 pools."""

Relocator: TypeAlias = Callable[[PagedKv, PagedKv, UploadedMoves], None]


def relocate(source: PagedKv, target: PagedKv, moves: Moves, rotation: Rotation) -> None:
    """Write the KV of ``moves`` into ``target``, keys turned by each token's shift.

    Runs on the device's current stream and returns before it is done. Source and target may be one pool as long as no
    slot is both read and written. Everything is checked first: :class:`InvalidKvError` means that nothing was written.
    """
    check_relocation(source, target, moves, rotation)
    if moves.tokens:
        _relocator(target.device, target.dtype)(source, target, moves.upload(rotation, target.device))


def relocate_uploaded(source: PagedKv, target: PagedKv, uploaded: UploadedMoves) -> None:
    """:func:`relocate` for moves that are on the device already, as when several pools move alike."""
    check_relocation(source, target, uploaded.moves, uploaded.rotation)
    if uploaded.source_slots.device != target.device:
        raise InvalidKvError(f"moves are on {uploaded.source_slots.device}, the pool on {target.device}")
    if uploaded.moves.tokens:
        _relocator(target.device, target.dtype)(source, target, uploaded)


def check_relocation(source: PagedKv, target: PagedKv, moves: Moves, rotation: Rotation) -> None:
    """Raise :class:`InvalidKvError` where these cannot go together."""
    if source.device != target.device or source.dtype != target.dtype:
        raise InvalidKvError(
            f"source is {source.dtype} on {source.device}, target {target.dtype} on {target.device}: they must be equal"
        )
    if source.layers != target.layers or bool(source.values) != bool(target.values):
        raise InvalidKvError(
            f"source has {source.layers} layers of keys and {len(source.values)} of values, "
            f"target {target.layers} and {len(target.values)}"
        )
    for what, taken, given in (("keys", source.keys, target.keys), ("values", source.values, target.values)):
        if taken and taken[0].shape[2:] != given[0].shape[2:]:
            raise InvalidKvError(
                f"{what} are {tuple(taken[0].shape[2:])} (heads, components) in the source, "
                f"{tuple(given[0].shape[2:])} in the target"
            )
    if rotation.key_dim != source.keys[0].shape[3]:
        raise InvalidKvError(f"the rotation is for keys of {rotation.key_dim}, these have {source.keys[0].shape[3]}")
    if not moves.tokens:
        return
    for what, slots, pool in (("source", moves.source_slots, source), ("target", moves.target_slots, target)):
        if slots.max() >= pool.slots:
            raise InvalidKvError(f"{what} slot {slots.max()} is beyond the pool's {pool.slots} slots")
    if moves.repeats_targets():
        raise InvalidKvError("a target slot is written twice: spans overlap or a block is in the table twice")
    if source.storages & target.storages:
        _check_disjoint(source, target, moves)


def _check_disjoint(source: PagedKv, target: PagedKv, moves: Moves) -> None:
    for taken, given in zip(source.keys + source.values, target.keys + target.values, strict=True):
        if taken.data_ptr() != given.data_ptr() or taken.shape != given.shape or taken.stride() != given.stride():
            raise InvalidKvError("source and target lie in one allocation but are not the same pool: slots differ")
    if moves.shares_slots():
        raise InvalidKvError("a slot is both read and written: within one pool the slots must be disjoint")


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Triton's kernels work there with such pools; warns once where they might be expected to."""
    if device.type != "cuda" or _kernel() is None:
        return False
    if (
        dtype in FP8_LARGEST
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY
    ):
        _warn_once(f"{device} does not convert {dtype} in hardware: relocating with torch, which is slower")
        return False
    return True


def _relocator(device: torch.device, dtype: torch.dtype) -> Relocator:
    kernel = _kernel() if has_kernel(device, dtype) else None
    return relocate_with_torch if kernel is None else kernel


@cache
def _kernel() -> Relocator | None:
    try:
        from semblend_core.kv.triton_relocation import relocate_with_triton
    except ImportError as error:
        _warn_once(f"relocating with torch, which is slower: {error}; `pip install 'semblend-core[gpu]'`")
        return None
    return relocate_with_triton


@cache
def _warn_once(message: str) -> None:
    _LOG.warning(message)
