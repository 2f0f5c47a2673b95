"""SGLang's KV pool, whose blocks are single slots. All runs on the current stream, nothing waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from semblend_core import Span
from semblend_core.kv import DonorKv, KvPool, Moves, PagedKv, Rotation, SlotTable


class SlotPool(KvPool):
    def __init__(self, views: PagedKv, rotation: Rotation, forward_stream: Any = None) -> None:
        super().__init__(views, rotation)
        self._forward_stream = forward_stream

    @classmethod
    def of_engine(cls, engine_pool: Any, rotation: Rotation, forward_stream: Any = None) -> SlotPool:
        """Views of the engine's buffers, in the order of the layers; MLA has one buffer per layer and no values."""
        latent = getattr(engine_pool, "kv_buffer", None)
        if latent is not None and not hasattr(engine_pool, "k_buffer"):
            views = PagedKv.from_slots([layer if layer.dim() == 3 else layer.unsqueeze(1) for layer in latent])
        else:
            views = PagedKv.from_slots(engine_pool.k_buffer, engine_pool.v_buffer)
        return cls(views, rotation, forward_stream)

    def take_slots(self, slots: Tensor) -> DonorKv:
        """A copy of the KV in ``slots``, whose numbers stay on the device."""
        flat = [view.flatten(0, 1) for view in (*self.views.keys, *self.views.values)]
        taken = [buffer.index_select(0, slots) for buffer in flat]
        keys, values = taken[: self.layers], taken[self.layers :]
        return DonorKv(torch.stack(keys), torch.stack(values) if values else None)

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
            span, slots = Span(1, "warm-up", 0, tokens), np.arange(2 * tokens)
            source = SlotTable.of_slots(slots[:tokens])
            target = SlotTable.of_slots(slots[tokens:], first_position=1)
            self.move(Moves.build([span], sources={"warm-up": source}, target=target))
            self.bring([(self.take_slots(torch.arange(tokens, device=self.device)), span)], target)
