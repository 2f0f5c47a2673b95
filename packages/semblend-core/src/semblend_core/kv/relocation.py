"""Moving KV: keys turned to their new positions, values copied, every layer and span in one launch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from semblend_core.contract.plan import Span
from semblend_core.kv.donor_kv import DonorKv, InvalidKvError
from semblend_core.kv.layout import FP8_LARGEST, PagedKv
from semblend_core.kv.moves import Moves, SlotTable
from semblend_core.kv.places import Places, SpanMoves
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.torch_relocation import relocate_with_torch

_LOG = logging.getLogger(__name__)
_FP8_CAPABILITY = (8, 9)
"""First CUDA capability that converts fp8 in hardware; the kernel needs it for fp8 pools."""


def relocate(source: PagedKv, target: PagedKv, moves: Moves, rotation: Rotation) -> None:
    """Write the KV of ``moves`` into ``target``, keys turned by each token's shift.

    Runs on the device's current stream and returns before it is done. Source and target may be one pool as long as no
    slot is both read and written. Everything is checked first: :class:`InvalidKvError` means that nothing was written.
    """
    check_relocation(source, target, moves, rotation)
    if not moves.tokens:
        return
    if has_kernel(target.device, target.dtype):
        _launch(source, target, SpanMoves.of_tokens(moves), rotation)
    else:
        relocate_with_torch(source, target, moves, rotation)


def relocate_spans(
    sources: Mapping[str, DonorKv], spans: Sequence[Span], target: PagedKv, table: SlotTable, rotation: Rotation
) -> None:
    """Write ``spans`` into ``target`` at the slots of ``table``, keys turned by each span's shift.

    As :func:`relocate`, for donors that are allocations of their own: all of them in one launch, and with a host that
    handles spans and blocks, never tokens. ``sources`` are the donors by id, on the target's device, whole or the
    part that the spans need. Runs on the current stream and returns before it is done; the donors must stay until
    then. Everything is checked first: :class:`InvalidKvError` means that nothing was written.

    Triton compiles once for a pool (and once more for donors that are not aligned to 16 bytes), so a call with a
    span of one token is all the warming up there is.
    """
    if rotation.key_dim != target.keys[0].shape[3]:
        raise InvalidKvError(f"the rotation is for keys of {rotation.key_dim}, these have {target.keys[0].shape[3]}")
    if not spans:
        return
    indices = {donor_id: index for index, donor_id in enumerate(dict.fromkeys(span.donor_id for span in spans))}
    for donor_id in indices:
        if donor_id not in sources:
            raise InvalidKvError(f"there are spans of donor {donor_id!r}, but no such source")
        _check_donor(donor_id, sources[donor_id], target)
    for span in spans:
        _check_reach(span, sources[span.donor_id])
    places = Places.find(spans, table, target)
    if not has_kernel(target.device, target.dtype):
        _relocate_one_by_one(sources, spans, target, table, rotation)
        return
    moves = SpanMoves.of_spans(
        places,
        np.array([indices[span.donor_id] for span in spans], np.int64),
        np.array([span.donor_start - sources[span.donor_id].first_position for span in spans], np.int64),
        np.array([span.shift for span in spans], np.int64),
    )
    _launch([sources[donor_id] for donor_id in indices], target, moves, rotation)


def relocate_slots(
    pool: PagedKv,
    spans: Sequence[Span],
    sources: Mapping[str, Tensor],
    target: Tensor,
    first_position: int,
    rotation: Rotation,
) -> None:
    """:func:`relocate` within a pool, by slots whose numbers are on the device. Where there is a kernel, none is read.

    ``sources`` are the slots of the donors' tokens by donor, ``target`` those of a sequence from ``first_position`` on.
    Then only what the host knows is checked: that the spans lie within them.
    """
    if not has_kernel(pool.device, pool.dtype):
        tables = {donor_id: SlotTable.of_slots(slots.cpu().numpy()) for donor_id, slots in sources.items()}
        table = SlotTable.of_slots(target.cpu().numpy(), first_position)
        relocate(pool, pool, Moves.build(spans, sources=tables, target=table), rotation)
        return
    for span in spans:
        if span.donor_end > len(sources[span.donor_id]):
            raise InvalidKvError(f"donor of {span} has {len(sources[span.donor_id])} slots")
        if span.target_start < first_position or span.target_end > first_position + len(target):
            raise InvalidKvError(f"target of {span} is outside its {len(target)} slots from {first_position} on")
    if spans:
        _launch(pool, pool, SpanMoves.of_slots(spans, sources, target, first_position), rotation)


def copy_slots(source: PagedKv, slots: Tensor, target: PagedKv, rotation: Rotation) -> None:
    """Write what lies in ``slots``, whose numbers are on the device, into the first slots of ``target`` as it is.

    Only where there is a kernel.
    """
    first = torch.arange(len(slots), dtype=torch.int32, device=slots.device)
    whole = Span(0, "slots", 0, len(slots))
    _launch(source, target, SpanMoves.of_slots([whole], {"slots": slots}, first, 0), rotation)


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Triton's kernels work there with such pools; warns once where they might be expected to."""
    if device.type != "cuda" or not _kernel_is_there():
        return False
    if (
        dtype in FP8_LARGEST
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY
    ):
        _warn_once(f"{device} does not convert {dtype} in hardware: relocating with torch, which is slower")
        return False
    return True


@cache
def _kernel_is_there() -> bool:
    try:
        import semblend_core.kv.triton_relocation  # noqa: F401
    except ImportError as error:
        _warn_once(f"relocating with torch, which is slower: {error}; `pip install 'semblend-core[gpu]'`")
        return False
    return True


@cache
def _warn_once(message: str) -> None:
    _LOG.warning(message)


def _launch(source: PagedKv | Sequence[DonorKv], target: PagedKv, moves: SpanMoves, rotation: Rotation) -> None:
    from semblend_core.kv.triton_relocation import relocate_with_triton

    relocate_with_triton(source, target, moves, rotation)


def _relocate_one_by_one(
    sources: Mapping[str, DonorKv], spans: Sequence[Span], target: PagedKv, table: SlotTable, rotation: Rotation
) -> None:
    for donor_id in dict.fromkeys(span.donor_id for span in spans):
        donor = sources[donor_id]
        own = [span for span in spans if span.donor_id == donor_id]
        moves = Moves.build(own, sources={donor_id: SlotTable.of_donor(donor)}, target=table)
        relocate_with_torch(PagedKv.from_donor(donor), target, moves, rotation)


# --- What cannot go together is refused before anything is written -------------------------------------------------


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


def _check_donor(donor_id: str, donor: DonorKv, target: PagedKv) -> None:
    keys, values = donor.keys, donor.values
    if keys.device != target.device or keys.dtype != target.dtype:
        raise InvalidKvError(
            f"donor {donor_id!r} is {keys.dtype} on {keys.device}, the pool {target.dtype} on {target.device}"
        )
    if donor.layers != target.layers or (values is not None) != bool(target.values):
        raise InvalidKvError(
            f"donor {donor_id!r} has {donor.layers} layers {'without' if values is None else 'with'} values, "
            f"the pool {target.layers} {'with' if target.values else 'without'}"
        )
    for what, taken, given in (("keys", keys, target.keys), ("values", values, target.values)):
        if taken is None:
            continue
        if taken.shape[2:] != given[0].shape[2:]:
            raise InvalidKvError(
                f"{what} of donor {donor_id!r} are {tuple(taken.shape[2:])} (heads, components), "
                f"those of the pool {tuple(given[0].shape[2:])}"
            )
        if taken.stride(3) != 1 and taken.shape[3] > 1:
            raise InvalidKvError(
                f"the last dimension of {what} of donor {donor_id!r} must be contiguous, got strides {taken.stride()}"
            )
        if taken.untyped_storage().data_ptr() in target.storages:
            raise InvalidKvError(f"{what} of donor {donor_id!r} lie in the pool's own memory: use relocate")


def _check_reach(span: Span, donor: DonorKv) -> None:
    end = donor.first_position + donor.tokens
    if span.donor_start < donor.first_position or span.donor_end > end:
        raise InvalidKvError(f"donor of {span} has the positions {donor.first_position} to {end}")
