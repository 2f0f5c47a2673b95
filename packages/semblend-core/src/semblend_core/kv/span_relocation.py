"""Moving spans of many dense donors into a pool at once: what a request does with its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from semblend_core.contract.plan import Span
from semblend_core.kv.donor_kv import DonorKv, InvalidKvError
from semblend_core.kv.layout import PagedKv
from semblend_core.kv.moves import Moves, SlotTable
from semblend_core.kv.places import Places
from semblend_core.kv.relocation import has_kernel, relocate
from semblend_core.kv.rotation import Rotation


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
    from semblend_core.kv.triton_span_relocation import relocate_spans_with_triton

    relocate_spans_with_triton(
        [sources[donor_id] for donor_id in indices],
        np.array([indices[span.donor_id] for span in spans], np.int64),
        np.array([span.donor_start - sources[span.donor_id].first_position for span in spans], np.int64),
        np.array([span.shift for span in spans], np.int64),
        places,
        target,
        rotation,
    )


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


def _relocate_one_by_one(
    sources: Mapping[str, DonorKv], spans: Sequence[Span], target: PagedKv, table: SlotTable, rotation: Rotation
) -> None:
    for donor_id in dict.fromkeys(span.donor_id for span in spans):
        donor = sources[donor_id]
        own = [span for span in spans if span.donor_id == donor_id]
        moves = Moves.build(own, sources={donor_id: SlotTable.of_donor(donor)}, target=table)
        relocate(PagedKv.from_donor(donor), target, moves, rotation)
