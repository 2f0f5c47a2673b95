"""A KV pool whose blocks are single slots. All runs on the current stream, nothing waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.contract import SelfTestResult, Span
from semblend_core.kv import (
    DeviceSlots,
    DonorKv,
    InvalidKvError,
    PagedKv,
    PagedMeanShift,
    Rotation,
    RotationProof,
    SlotTable,
)
from semblend_core.kv.donor_kv import indexable
from semblend_core.kv.layout import FP8_LARGEST
from semblend_core.kv.moves import Indices
from semblend_core.kv.pool import KvPool
from semblend_core.kv.relocation import relocate_slots
from semblend_core.kv.rotation import layers_alike
from semblend_core.recompute import MeanShift
from semblend_core.serving.warming import compile_correction


class SlotPool(KvPool):
    def __init__(self, views: PagedKv, rotation: Rotation | Sequence[Rotation], forward_stream: Any = None) -> None:
        """``rotation``: of all layers, or of each. ``forward_stream``: where forwards run, if not on the stream of
        those who call this."""
        self.rotations = (rotation,) * views.layers if isinstance(rotation, Rotation) else tuple(rotation)
        super().__init__(views, self.rotations[0])
        alike = layers_alike(self.rotations)
        self._kinds = [
            (own, KvPool(views if len(alike) == 1 else views.of_layers(own), self.rotations[own[0]])) for own in alike
        ]
        """Layers that turn keys alike, and the part of the pool that is theirs."""
        self._forward_stream = forward_stream

    @property
    def turns_alike(self) -> bool:
        """Whether all layers turn keys in the same way."""
        return len(self._kinds) == 1

    @property
    def probe_layers(self) -> int | None:
        """Layers in which queries meet these keys as they are; None where attention makes others of them (MLA)."""
        return self.layers if self.views.values else None

    def move_slots(
        self, spans: Sequence[Span], sources: Mapping[str, Tensor], target: Tensor, first_position: int
    ) -> None:
        """Spans of donors that lie in the pool, by slots whose numbers stay on the device. Nobody waits for them."""
        for _, kind in self._kinds:
            relocate_slots(kind.stored, spans, sources, target, first_position, kind.rotation)

    def bring(self, moves: Sequence[tuple[DonorKv, Span]], table: SlotTable) -> None:
        if self.turns_alike:
            super().bring(moves, table)
            return
        for own, kind in self._kinds:
            kind.bring([(donor.of_layers(own), span) for donor, span in moves], table)

    def correction(
        self, shift: MeanShift, spans: Sequence[Span], rows: Indices, table: SlotTable | DeviceSlots
    ) -> PagedMeanShift:
        if not self.turns_alike:
            raise InvalidKvError("KV of layers that turn keys differently is not corrected")
        return super().correction(shift, spans, rows, table)

    def take_slots(self, slots: Tensor) -> DonorKv:
        """A copy of the KV in ``slots``, whose numbers stay on the device."""
        flat = [indexable(view.flatten(0, 1)) for view in (*self.views.keys, *self.views.values)]
        taken = [buffer.index_select(0, slots) for buffer in flat]
        keys, values = taken[: self.layers], taken[self.layers :]
        stacked = [torch.stack(parts).view(self.views.dtype) if parts else None for parts in (keys, values)]
        assert stacked[0] is not None
        return DonorKv(stacked[0], stacked[1])

    def test_keys(
        self, proof: RotationProof, read_slots: Callable[[], Tensor], token_ids: npt.ArrayLike
    ) -> SelfTestResult | None:
        """The self-test that needs no forward: where a prompt holds a token twice, the pool must agree with itself.

        What is known now, where this prompt has changed it. ``read_slots`` gives the slots of its tokens, and is called
        only if they are wanted. Then this waits for the device.
        """
        pairs = proof.pairs_wanted(token_ids)
        if pairs is None:
            return None
        slots = read_slots()
        both = torch.from_numpy(np.concatenate((pairs.first, pairs.later))).to(slots.device)
        count = pairs.first.size

        def at_both(part: Tensor) -> tuple[Tensor, Tensor]:
            there = part.cpu()
            return there[:count], there[count:]

        keys, values = self.first_layer(slots[both])
        deeper = dict(zip(proof.deeper, map(at_both, self.keys_at(proof.deeper, slots[both])), strict=True))
        all_layers = self.take_slots(slots[both[:count]]).keys.cpu() if keys.dtype in FP8_LARGEST else None
        return proof.judge(pairs, at_both(keys), None if values is None else at_both(values), deeper, all_layers)

    def come_behind_the_forward(self) -> None:
        """With overlapped scheduling a forward may still write to slots that are free by now.

        The next forward waits for the scheduler's stream by itself, so it comes behind what is queued here.
        """
        if self.device.type == "cuda" and self._forward_stream is not None:
            torch.cuda.current_stream().wait_stream(self._forward_stream)

    def mark(self) -> Any:
        """An event behind what is queued so far; None where nothing is ever queued."""
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def warm_up(self) -> None:
        """Compile what a first request would otherwise wait for. Nothing is in use yet, so any slots serve."""
        for tokens in (16, 17):
            span, slots = Span(1, "warm-up", 0, tokens), torch.arange(2 * tokens, device=self.device)
            self.move_slots([span], {"warm-up": slots[:tokens]}, slots[tokens:], first_position=1)
            target = SlotTable.of_slots(np.arange(tokens, 2 * tokens), first_position=1)
            self.bring([(self.take_slots(torch.arange(tokens, device=self.device)), span)], target)
            if self.turns_alike:
                there = DeviceSlots(slots[tokens:], first_position=1)
                compile_correction(partial(self.correction, table=there), span, self.layers)
