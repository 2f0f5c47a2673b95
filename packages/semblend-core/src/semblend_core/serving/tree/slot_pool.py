"""A KV pool whose blocks are single slots. All runs on the current stream, nothing waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.contract import Span
from semblend_core.kv import (
    DonorKv,
    KvPool,
    Moves,
    PagedKv,
    Rotation,
    SlotTable,
    pairs_of_equal_tokens,
    why_pairs_disagree,
)

MOST_PAIRS = 256
"""Of equal tokens that a self-test compares."""


class SlotPool(KvPool):
    def __init__(self, views: PagedKv, rotation: Rotation, forward_stream: Any = None) -> None:
        """``forward_stream``: where forwards run, if not on the stream of those who call this."""
        super().__init__(views, rotation)
        self._forward_stream = forward_stream

    def take_slots(self, slots: Tensor) -> DonorKv:
        """A copy of the KV in ``slots``, whose numbers stay on the device."""
        flat = [view.flatten(0, 1) for view in (*self.views.keys, *self.views.values)]
        taken = [buffer.index_select(0, slots) for buffer in flat]
        keys, values = taken[: self.layers], taken[self.layers :]
        return DonorKv(torch.stack(keys), torch.stack(values) if values else None)

    def test_keys(self, slots: Tensor, token_ids: npt.ArrayLike) -> str | None:
        """The self-test that needs no forward: where a prompt holds a token twice, the pool must agree with itself.

        Why relocation cannot be trusted with this model; empty where it can, None where this prompt proves nothing.
        ``slots`` are those of the prompt's tokens. Waits for the device: it is asked until it has answered once.
        """
        pairs = pairs_of_equal_tokens(token_ids)
        if pairs is None:
            return None
        first, later = (places[:MOST_PAIRS] for places in pairs)
        both = torch.from_numpy(np.concatenate((first, later))).to(slots.device)
        keys, values = (None if part is None else part.float().cpu() for part in self.first_layer(slots[both]))
        assert keys is not None
        count = first.size
        return why_pairs_disagree(
            (keys[:count], keys[count:]),
            None if values is None else (values[:count], values[count:]),
            later - first,
            self.rotation,
            self.views.dtype,
        )

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
