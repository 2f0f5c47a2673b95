"""Mean shift inside vLLM's forward, for pools that can only be read and written as a whole.

vLLM calls ``wait_for_layer_load`` in each layer after the step's KV was written and before anything attends to it.
There the rows' fresh KV is compared with what was relocated to their places, and the rest of each span moves along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core import Span
from semblend_core.kv import LearnedShift, MeanShiftCorrection, Rotation, middle_layer
from semblend_core.recompute import MeanShift


class LayerMemory(Protocol):
    layers: int

    def read_layer(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of K and V [tokens, kv_heads, dim] of one layer."""

    def write_layer(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """The opposite."""


class CopiedCorrection:
    """One request's correction in one step, on copies that are written back."""

    def __init__(
        self,
        memory: LayerMemory,
        slots: npt.NDArray[np.int64],
        spans: Sequence[Span],
        rows: npt.NDArray[np.int64],
        shift: MeanShift,
        rotation: Rotation,
        learned: LearnedShift | None = None,
    ) -> None:
        """``slots``: of all the sequence's positions."""
        self._memory = memory
        first, end = spans[0].target_start, spans[-1].target_end
        inside = rows[_inside(rows, spans)]
        self._slots = torch.from_numpy(slots[first:end])
        row_slots = torch.from_numpy(slots[inside])
        self._replaced = [memory.read_layer(layer, row_slots) for layer in range(memory.layers)]
        # Positions count from the first span on: only distances matter to the rotation.
        moved = [replace(span, target_start=span.target_start - first) for span in spans]
        middle = memory.read_layer(middle_layer(memory.layers), self._slots)
        origins = [first] * len(spans)
        self._correction = MeanShiftCorrection(shift, moved, inside - first, rotation, middle, learned, origins)

    def apply(self, layer: int) -> None:
        keys, values = self._memory.read_layer(layer, self._slots)
        self._correction.apply(layer, keys, values, *self._replaced[layer])
        self._memory.write_layer(layer, self._slots, keys, values)


def _inside(rows: npt.NDArray[np.int64], spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """Rows that replace relocated KV; the others fill gaps."""
    inside = np.zeros(rows.size, np.bool_)
    for span in spans:
        inside |= (rows >= span.target_start) & (rows < span.target_end)
    return inside
