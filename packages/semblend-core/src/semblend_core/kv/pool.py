"""An engine's KV pool behind the few operations that SemBlend needs. All run on the current stream, none waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from semblend_core.contract import Span
from semblend_core.kv.donor_kv import DonorKv, indexable
from semblend_core.kv.layout import FP8_LARGEST, PagedKv
from semblend_core.kv.learned_shift import KvShape, LearnedShift
from semblend_core.kv.moves import Indices, Moves, SlotTable
from semblend_core.kv.paged_mean_shift import PagedMeanShift
from semblend_core.kv.places import DeviceSlots
from semblend_core.kv.relocation import has_kernel, relocate, relocate_spans
from semblend_core.kv.rotation import Rotation
from semblend_core.recompute import MeanShift

if TYPE_CHECKING:
    from semblend_core.kv.triton_relocation import CopyOut


class KvPool:
    """A pool whose blocks are plain strided memory, as on GPUs."""

    def __init__(self, views: PagedKv, rotation: Rotation) -> None:
        self.views, self.rotation = views, rotation
        self.stored = views.stored
        """KV stays in this pool, or goes out and comes back under the same scales: bytes move, scales cancel out."""
        self.learned: LearnedShift | None = None
        """The correction that was fitted for the weights whose KV this is."""
        self.device, self.layers = views.device, views.layers
        per_token = sum(view[0, 0].numel() for view in (*views.keys, *views.values))
        self.token_bytes = per_token * views.dtype.itemsize
        """Bytes of one token, all layers, K and V."""

    def take(self, table: SlotTable, tokens: int) -> DonorKv:
        """A copy of the first ``tokens`` of a sequence."""
        donor = self.views.empty_donor(tokens)
        by_block = table.block_size == self.views.block_size and table.first_position == 0
        if tokens and by_block and has_kernel(self.device, self.views.dtype):
            self._copy_out(table.blocks, donor)
            return donor
        whole = [Span(0, "engine", 0, tokens)]
        moves = Moves.build(whole, sources={"engine": table}, target=SlotTable.of_donor(donor))
        relocate(self.stored, PagedKv.from_donor(donor), moves, self.rotation)
        return donor

    def bring(self, moves: Sequence[tuple[DonorKv, Span]], table: SlotTable) -> None:
        """Write spans into a sequence's slots, keys turned to their places. Each comes with the KV that holds it."""
        # A donor may come in several parts, each a source of its own.
        sources = {f"{span.donor_id}#{id(donor)}": donor for donor, span in moves}
        spans = [replace(span, donor_id=f"{span.donor_id}#{id(donor)}") for donor, span in moves]
        relocate_spans(sources, spans, self.stored, table, self.rotation)

    def move(self, moves: Moves) -> None:
        """The same for donors that lie in the pool."""
        relocate(self.stored, self.stored, moves, self.rotation)

    def correction(
        self, shift: MeanShift, spans: Sequence[Span], rows: Indices, table: SlotTable | DeviceSlots
    ) -> PagedMeanShift:
        """Made after the spans were written, and before the forward computes ``rows``."""
        return PagedMeanShift(shift, spans, rows, self.views, table, self.rotation, self.learned)

    @cached_property
    def _copy_out(self) -> CopyOut:
        from semblend_core.kv.triton_relocation import CopyOut

        return CopyOut(self.stored, self.rotation)

    @property
    def shape(self) -> KvShape:
        keys, values = self.views.keys[0], self.views.values
        return KvShape(self.layers, keys.shape[2], keys.shape[3], values[0].shape[3] if values else 0)

    def first_layer(self, slots: Tensor) -> tuple[Tensor, Tensor | None]:
        """K and V of layer 0 [tokens, heads, dim], as they are stored."""
        at = self._places(slots)
        keys, values = (
            indexable(views[0])[at].view(views[0].dtype) if views else None
            for views in (self.views.keys, self.views.values)
        )
        assert keys is not None
        return keys, values

    def keys_at(self, layers: Iterable[int], slots: Tensor) -> Iterator[Tensor]:
        """Copies of K [tokens, heads, dim], layer by layer when it is asked for; of fp8 as computed, in float32."""
        at, views = self._places(slots), self.views
        is_fp8 = views.dtype in FP8_LARGEST
        return (views.read_keys(layer, at) if is_fp8 else views.keys[layer][at] for layer in layers)

    def _places(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        return slots // self.views.block_size, slots % self.views.block_size
