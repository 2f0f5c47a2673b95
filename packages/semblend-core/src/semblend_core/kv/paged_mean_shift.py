"""Mean shift where an engine keeps its KV: in place, in a paged pool, inside the forward that computes the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from semblend_core.contract import Span
from semblend_core.kv.donor_kv import DonorKv, InvalidKvError
from semblend_core.kv.layout import PagedKv
from semblend_core.kv.mean_shift import MeanShiftCorrection, MeasuredSpans
from semblend_core.kv.moves import Indices, Moves, SlotTable, begins_of, upload
from semblend_core.kv.places import DeviceSlots, Places
from semblend_core.kv.relocation import copy_slots, has_kernel, relocate
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.row_shift import Kv, Learned, middle_layer
from semblend_core.recompute import MeanShift


class PagedMeanShift:
    """One request's correction in one forward: :class:`MeanShiftCorrection` for KV that lies in a pool.

    Make it after the spans were relocated and before the forward: it keeps a copy of what lies at the rows' places.
    Then call ``apply`` in each layer, between the write of the rows' fresh KV and the attention. Everything is ordered
    on the current stream, which must be the same one throughout; the host never waits. Sums are float32 and of what was
    computed, whatever fp8 scales it is stored with; the result is rounded once. The memory it holds is that copy and
    some tables; drop it after the forward.
    """

    def __init__(
        self,
        shift: MeanShift,
        spans: Sequence[Span],
        row_positions: Indices,
        pool: PagedKv,
        table: SlotTable | DeviceSlots,
        rotation: Rotation,
        learned: Learned | None = None,
    ) -> None:
        """``row_positions`` are those of all tokens that the forward computes; what lies in no span is ignored.

        Raises :class:`InvalidKvError` where these do not go together.
        """
        if rotation.key_dim != pool.keys[0].shape[3]:
            raise InvalidKvError(f"the rotation is for keys of {rotation.key_dim}, these have {pool.keys[0].shape[3]}")
        measured = MeasuredSpans.choose(shift, spans, row_positions)
        self._shift: _LayerShift | None = None
        self._layers = pool.layers
        if isinstance(table, DeviceSlots) and not has_kernel(pool.device, pool.dtype):
            table = table.on_host()
        if measured.spans:
            places = Places.find(measured.spans, table, pool)
            if _have_kernels(shift, pool, learned):
                self._shift = _with_kernels(measured, places, pool, rotation)
            else:
                self._shift = _with_torch(measured, places, table, pool, rotation, learned)

    def apply(self, layer: int) -> None:
        """Correct one layer in place: what lies at the rows is fresh now, the rest of each span moves along."""
        if not 0 <= layer < self._layers:
            raise InvalidKvError(f"layer {layer} of a pool of {self._layers}")
        if self._shift is not None:
            self._shift.apply(layer)


class _LayerShift(Protocol):
    def apply(self, layer: int) -> None: ...


class LaidSpans:
    """Measured spans taken out of the pool and laid end to end: only distances within a span matter to the rotation."""

    def __init__(self, measured: MeasuredSpans, places: Places, pool: PagedKv) -> None:
        self._pool = pool
        lengths = places.lengths.astype(np.int64)
        begins = begins_of(lengths)
        self.spans = [
            replace(span, target_start=int(begin)) for span, begin in zip(measured.spans, begins, strict=True)
        ]
        self.origins = [span.target_start - int(begin) for span, begin in zip(measured.spans, begins, strict=True)]
        self.rows = np.repeat(begins, measured.counts) + measured.offsets
        self.shift = replace(measured.shift, min_rows=1)
        inside = np.repeat(places.starts - begins, lengths) + np.arange(lengths.sum())
        slots = _slots_on_device(places, inside, pool)
        self._at = (slots // pool.block_size, slots % pool.block_size)

    def read(self, layer: int) -> Kv:
        """Copies of K and V, in float32; V has no components where the pool keeps none."""
        keys, values = self._pool.read(layer, self._at)
        return keys, keys[..., :0] if values is None else values

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self._pool.write(layer, self._at, keys, values)


class TorchMeanShift:
    """Gathers the spans, lets :class:`MeanShiftCorrection` correct them, and scatters them back."""

    def __init__(self, laid: LaidSpans, old: PagedKv, rotation: Rotation, middle: Kv, learned: Learned | None) -> None:
        """``old``: what was at the rows, in their order."""
        self._laid, self._old = laid, old
        rows = torch.arange(old.slots, device=old.device)
        self._rows = (torch.zeros_like(rows), rows)
        self._correction = MeanShiftCorrection(
            laid.shift, laid.spans, laid.rows, rotation, middle, learned, laid.origins
        )

    def apply(self, layer: int) -> None:
        keys, values = self._laid.read(layer)
        old_keys, old_values = self._old.read(layer, self._rows)
        self._correction.apply(layer, keys, values, old_keys, old_keys[..., :0] if old_values is None else old_values)
        self._laid.write(layer, keys, values)


def _slots_on_device(places: Places, inside: Indices, pool: PagedKv) -> Tensor:
    if isinstance(places.blocks, Tensor):
        (numbers,) = upload([inside], pool.device)
        return places.blocks.index_select(0, numbers).long()
    (slots,) = upload([SlotTable(places.blocks, places.block_size).slots_of(inside)], pool.device)
    return slots


def _copied(rows: Indices, table: SlotTable | DeviceSlots, pool: PagedKv, rotation: Rotation) -> DonorKv:
    """What lies at ``rows``, all layers, in one launch."""

    def empty(views: tuple[Tensor, ...]) -> Tensor:
        shape = (pool.layers, rows.size, *views[0].shape[2:])
        return torch.empty(shape, dtype=pool.dtype, device=pool.device)

    copy = DonorKv(empty(pool.keys), empty(pool.values) if pool.values else None)
    target = PagedKv.from_donor(copy)
    if isinstance(table, DeviceSlots):
        (places,) = upload([rows - table.first_position], pool.device)
        copy_slots(pool.stored, table.slots.index_select(0, places), target, rotation)
    else:
        in_order = np.arange(rows.size)
        moves = Moves(table.slots_of(rows), in_order, np.zeros(rows.size, np.int64), np.zeros(1, np.int64))
        relocate(pool.stored, target, moves, rotation)
    return copy


def _have_kernels(shift: MeanShift, pool: PagedKv, learned: Learned | None) -> bool:
    fitted = shift.learned and learned is not None
    return has_kernel(pool.device, pool.dtype) and not fitted and (shift.is_plain or shift.weighs_rows)


def _with_kernels(measured: MeasuredSpans, places: Places, pool: PagedKv, rotation: Rotation) -> _LayerShift:
    from semblend_core.kv.triton_mean_shift import TritonMeanShift

    return TritonMeanShift(measured, places, pool, rotation)


def _with_torch(
    measured: MeasuredSpans,
    places: Places,
    table: SlotTable | DeviceSlots,
    pool: PagedKv,
    rotation: Rotation,
    learned: Learned | None,
) -> _LayerShift:
    old = PagedKv.from_donor(_copied(measured.rows, table, pool, rotation))
    laid = LaidSpans(measured, places, pool)
    middle = laid.read(middle_layer(pool.layers))
    scaled = old.with_scales(pool.key_scales, pool.value_scales)
    return TorchMeanShift(laid, scaled, rotation, middle, learned if measured.shift.learned else None)
