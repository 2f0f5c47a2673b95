"""Where the question of one request looks, seen inside a step's forward."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from semblend_core.kv import QuestionAttention, SlotTable
from semblend_core.kv.donor_kv import indexable
from semblend_core.kv.moves import upload
from semblend_core.recompute import Scores
from semblend_core.serving.messages import ProbeOrder
from semblend_core.serving.worker.memory import KvMemory


class Look:
    """One probe of the step under way. Nothing waits for the device before ``scores``.

    Keys are read from the pool when some layers were seen. They stay as the forward found them until the next step's.
    """

    def __init__(self, order: ProbeOrder, memory: KvMemory) -> None:
        table = SlotTable(np.fromiter(order.block_ids, np.int64, len(order.block_ids)), memory.block_size)
        start, end = order.question
        (slots,) = upload([table.slots_of(np.arange(end))], memory.device)
        self._question_slots = slots[start:]
        asking = torch.arange(start, end, device=memory.device)
        self._attention = QuestionAttention(asking, order.layers, partial(memory.keys_at, slots=slots), start)
        self._rows: Tensor | None = None
        """Of the batch: which compute the question. The same in every layer."""

    @property
    def layers(self) -> range:
        """That it is to be shown."""
        return self._attention.layers

    def add(self, layer: int, queries: Tensor, slots: Tensor, scale: float) -> None:
        """``queries`` [rows, q_heads, dim] of the whole batch, whose KV was written to ``slots``."""
        if self._rows is None:
            # Each slot is written by one row. To find it so waits for nobody.
            self._rows = (slots[None, :] == self._question_slots[:, None]).int().argmax(1)
        asking = indexable(queries).index_select(0, self._rows).view(queries.dtype)
        self._attention.add(layer, asking, scale)

    def scores(self) -> Scores | None:
        """[tokens], of the heads that are here. None: it did not see what it was to see. Waits for the device."""
        return self._attention.scores()
