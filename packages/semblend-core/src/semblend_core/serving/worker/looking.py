"""Where the question of one request looks, seen inside a step's forward."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from semblend_core.kv import QuestionAttention, SlotTable
from semblend_core.recompute import Scores
from semblend_core.serving.messages import ProbeOrder
from semblend_core.serving.worker.memory import KvMemory


class Look:
    """One probe of the step under way. Nothing waits for the device before ``scores``."""

    def __init__(self, order: ProbeOrder, memory: KvMemory, *, some_heads: bool = False) -> None:
        """``some_heads``: others have the rest, and what any head sees is known when they have told."""
        table = SlotTable(np.fromiter(order.block_ids, np.int64, len(order.block_ids)), memory.block_size)
        start, end = order.question
        positions = np.arange(end)
        self.layers, self._some_heads = order.layers, some_heads
        self._memory = memory
        self._slots = torch.from_numpy(table.slots_of(positions)).to(memory.device)
        self._question_slots = self._slots[start:]
        self._attention = QuestionAttention(torch.from_numpy(positions[start:]).to(memory.device))
        self._rows: Tensor | None = None
        """Of the batch: which compute the question. The same in every layer."""

    def add(self, layer: int, queries: Tensor, slots: Tensor, scale: float) -> None:
        """``queries`` [rows, q_heads, dim] of the whole batch, whose KV was written to ``slots``."""
        if self._rows is None:
            # Each slot is written by one row. To find it so waits for nobody.
            self._rows = (slots[None, :] == self._question_slots[:, None]).int().argmax(1)
        keys = self._memory.keys_at(layer, self._slots)
        self._attention.add(queries.index_select(0, self._rows), keys, scale)

    def scores(self) -> Scores | None:
        """In half precision, which is enough to choose by. None: not every layer was seen. Waits for the device.

        [tokens], or with some of the heads [layers, tokens] as they are: ``over_layers`` makes the same of all ranks'.
        """
        by_layer = self._attention.by_layer
        if not by_layer or len(by_layer) != len(self.layers):
            return None
        seen = torch.stack(by_layer)
        found = (seen if self._some_heads else seen.sum(0).half()).cpu().numpy()
        return found if np.isfinite(found).all() else None
