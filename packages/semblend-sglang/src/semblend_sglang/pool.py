"""SGLang's KV pool behind the few operations that SemBlend needs. All run on the current stream, none waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from semblend_core import Span
from semblend_core.kv import DonorKv, Moves, PagedKv, Rotation, SlotTable, relocate


class KvPool:
    def __init__(self, views: PagedKv, rotation: Rotation, forward_stream: Any = None) -> None:
        self.views, self.rotation, self._forward_stream = views, rotation, forward_stream
        self.device, self.layers = views.device, views.layers
        per_token = sum(view[0].numel() for view in (*views.keys, *views.values))
        self.token_bytes = per_token * views.dtype.itemsize

    @classmethod
    def of_engine(cls, engine_pool: Any, rotation: Rotation, forward_stream: Any = None) -> KvPool:
        """Views of the engine's buffers, in the order of the layers; MLA has one buffer per layer and no values."""
        latent = getattr(engine_pool, "kv_buffer", None)
        if latent is not None and not hasattr(engine_pool, "k_buffer"):
            views = PagedKv.from_slots([_three_dimensional(layer) for layer in latent])
        else:
            views = PagedKv.from_slots(engine_pool.k_buffer, engine_pool.v_buffer)
        return cls(views, rotation, forward_stream)

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

    def move(self, moves: Moves) -> None:
        """Copy donors' KV to the recipient's slots, keys turned to their new places."""
        relocate(self.views, self.views, moves, self.rotation)

    def bring(self, donor: DonorKv, spans: list[Span], target: SlotTable) -> None:
        """The same from KV that lies outside the pool."""
        moves = Moves.build(spans, sources={span.donor_id: SlotTable.of_donor(donor) for span in spans}, target=target)
        relocate(PagedKv.from_donor(donor), self.views, moves, self.rotation)

    def take(self, slots: Tensor) -> DonorKv:
        """A copy of the KV in ``slots``."""
        flat = [view.flatten(0, 1) for view in (*self.views.keys, *self.views.values)]
        taken = [buffer.index_select(0, slots) for buffer in flat]
        keys, values = taken[: self.layers], taken[self.layers :]
        return DonorKv(torch.stack(keys), torch.stack(values) if values else None)

    def first_layer(self, slots: Tensor) -> tuple[Tensor, Tensor | None]:
        """K and V of layer 0 [tokens, heads, dim]."""
        keys = self.views.keys[0].flatten(0, 1)[slots]
        return keys, self.views.values[0].flatten(0, 1)[slots] if self.views.values else None

    def warm_up(self) -> None:
        """Compile what a first request would otherwise wait for. Nothing is in use yet, so any slots serve."""
        for tokens in (16, 17):
            slots = np.arange(2 * tokens)
            self.move(
                Moves.build(
                    [Span(1, "warm-up", 0, tokens)],
                    sources={"warm-up": SlotTable.of_slots(slots[:tokens])},
                    target=SlotTable.of_slots(slots[tokens:], first_position=1),
                )
            )


def _three_dimensional(layer: Tensor) -> Tensor:
    return layer if layer.dim() == 3 else layer.unsqueeze(1)
