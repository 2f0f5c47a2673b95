"""KV memory of a model whose layers turn keys differently: one memory for each kind of layer, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from semblend_core.contract import Span
from semblend_core.kv import DonorKv, LearnedShift, Rotation
from semblend_core.kv.donor_kv import indexable
from semblend_core.kv.rotation import layers_alike
from semblend_core.recompute import MeanShift
from semblend_core.serving.worker.memory import KvMemory, LayerCorrection, Move


def memory_by_rotation(
    layers: Sequence[torch.Tensor],
    rotations: Sequence[Rotation],
    make: Callable[[list[torch.Tensor], Rotation], KvMemory],
) -> KvMemory:
    """``make`` gives the memory of layers that rotate alike; ``rotations`` are those of the ``layers``."""
    made = [(own, make([layers[layer] for layer in own], rotations[own[0]])) for own in layers_alike(rotations)]
    return made[0][1] if len(made) == 1 else LayeredMemory(made)


class LayeredMemory:
    """Each part has some of the layers. A correction is measured in each part by itself."""

    def __init__(self, parts: Sequence[tuple[list[int], KvMemory]]) -> None:
        self._parts = list(parts)
        self._place = {layer: (part, at) for part, (own, _) in enumerate(parts) for at, layer in enumerate(own)}
        first = parts[0][1]
        self.block_size, self.device, self.layers = first.block_size, first.device, len(self._place)
        self.token_bytes = sum(memory.token_bytes for _, memory in parts)
        self.shape = replace(first.shape, layers=self.layers)
        self._learned: LearnedShift | None = None

    @property
    def learned(self) -> LearnedShift | None:
        return self._learned

    @learned.setter
    def learned(self, learned: LearnedShift | None) -> None:
        self._learned = learned
        for own, memory in self._parts:
            memory.learned = None if learned is None else learned.of_layers(own)

    def gather(self, block_ids: Sequence[int], tokens: int) -> DonorKv:
        taken = [memory.gather(block_ids, tokens) for _, memory in self._parts]
        values = [donor.values for donor in taken if donor.values is not None]
        return DonorKv(self._joined([donor.keys for donor in taken]), self._joined(values) if values else None)

    def _joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        whole = parts[0].new_empty((self.layers, *parts[0].shape[1:]))
        for (own, _), part in zip(self._parts, parts, strict=True):
            indexable(whole)[own] = indexable(part)
        return whole

    def scatter(self, block_ids: Sequence[int], moves: Sequence[Move]) -> None:
        for own, memory in self._parts:
            memory.scatter(block_ids, [(donor.of_layers(own), span) for donor, span in moves])

    def correction(
        self, block_ids: Sequence[int], spans: Sequence[Span], rows: npt.NDArray[np.int64], shift: MeanShift
    ) -> LayerCorrection:
        return _Corrections(
            [memory.correction(block_ids, spans, rows, shift) for _, memory in self._parts], self._place
        )

    def keys_at(self, layers: Iterable[int], slots: torch.Tensor) -> Iterator[torch.Tensor]:
        for layer in layers:
            part, at = self._place[layer]
            yield from self._parts[part][1].keys_at([at], slots)


class _Corrections:
    def __init__(self, parts: Sequence[LayerCorrection], place: dict[int, tuple[int, int]]) -> None:
        self._parts, self._place = parts, place

    def apply(self, layer: int) -> None:
        part, at = self._place[layer]
        self._parts[part].apply(at)
