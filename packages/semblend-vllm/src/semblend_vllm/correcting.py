"""Mean shift inside vLLM's forward.

vLLM calls ``wait_for_layer_load`` in each layer after the step's KV was written and before anything attends to it.
There the rows' fresh KV is compared with what was relocated to their places, and the rest of each span moves along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from semblend_core.kv import MeanShiftCorrection, Rotation
from semblend_vllm.engine_cache import EngineCache
from semblend_vllm.messages import Load


class ForwardCorrection:
    """One request's correction in one step. Made after its spans were loaded, before the forward."""

    def __init__(self, load: Load, cache: EngineCache, rotation: Rotation) -> None:
        assert load.correction is not None
        self._cache = cache
        first, end = load.spans[0].target_start, load.spans[-1].target_end
        rows = np.concatenate([np.arange(*row) for row in load.rows] or [np.empty(0, np.int64)])
        rows = rows[_inside(rows, load)]
        positions = np.arange(first, end)
        self._slots = _slots(load.block_ids, positions, cache.block_size, cache.device)
        row_slots = _slots(load.block_ids, rows, cache.block_size, cache.device)
        self._replaced = [cache.read_layer(layer, row_slots) for layer in range(cache.layers)]
        # Positions count from the first span on: only distances matter to the rotation.
        moved = [replace(span, target_start=span.target_start - first) for span in load.spans]
        self._correction = MeanShiftCorrection(load.correction, moved, rows - first, rotation, cache.device)

    def apply(self, layer: int) -> None:
        keys, values = self._cache.read_layer(layer, self._slots)
        self._correction.apply(keys, values, *self._replaced[layer])
        self._cache.write_layer(layer, self._slots, keys, values)


def _inside(rows: npt.NDArray[np.int64], load: Load) -> npt.NDArray[np.bool_]:
    """Rows that replace relocated KV; the others fill gaps."""
    inside = np.zeros(rows.size, np.bool_)
    for span in load.spans:
        inside |= (rows >= span.target_start) & (rows < span.target_end)
    return inside


def _slots(
    block_ids: Sequence[int], positions: npt.NDArray[np.int64], block_size: int, device: torch.device
) -> torch.Tensor:
    blocks = np.asarray(block_ids)[positions // block_size]
    return torch.from_numpy(blocks * block_size + positions % block_size).to(device, non_blocking=True)
