"""Ridge regression in a stream: what is kept of all samples is as large as one map, not as many as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from semblend_core.kv.learned_shift import KvShape
from semblend_core.recompute import MeanShift

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Tried in each layer, by the mean square of the standardised inputs. Beside them, the plain strengths."""


class Equations:
    """Normal equations of all layers and heads, float64."""

    def __init__(self, shape: KvShape, device: torch.device) -> None:
        self.shape = shape
        heads = (shape.layers, shape.kv_heads)
        self._products = torch.zeros((*heads, shape.inputs, shape.inputs), dtype=torch.float64, device=device)
        self._targets = torch.zeros((*heads, shape.inputs, shape.width), dtype=torch.float64, device=device)
        self._energy = torch.zeros(shape.layers, dtype=torch.float64, device=device)
        self.samples = 0

    def add(self, layer: int, inputs: Tensor, change: Tensor) -> None:
        """``inputs`` [tokens, kv_heads, inputs], ``change`` [tokens, kv_heads, width]."""
        by_head, wanted = inputs.transpose(0, 1), change.transpose(0, 1)
        self._products[layer] += (by_head.transpose(1, 2) @ by_head).double()
        self._targets[layer] += (by_head.transpose(1, 2) @ wanted).double()
        self._energy[layer] += change.double().square().sum()
        self.samples += inputs.shape[0] if layer == 0 else 0

    def left(self, layer: int, maps: Tensor) -> float:
        """Share of the change that ``maps`` [kv_heads, inputs, width] leave, in squares."""
        found = (maps * (self._products[layer] @ maps - 2 * self._targets[layer])).sum()
        return float(1 + found / self._energy[layer].clamp(min=1e-30))

    def solve(self, layer: int, ridge: float, start: Tensor) -> Tensor:
        """The maps that leave least, held near ``start`` by ``ridge``."""
        products, targets = self._products[layer], self._targets[layer]
        scale = products.diagonal(dim1=1, dim2=2).clamp(min=1e-12).sqrt()
        standard = products / scale[:, :, None] / scale[:, None, :]
        standard.diagonal(dim1=1, dim2=2).add_(ridge)
        missing = (targets - products @ start) / scale[:, :, None]
        added: Tensor = torch.linalg.solve(standard, missing) / scale[:, :, None]
        return start + added


def plain_maps(shape: KvShape, shift: MeanShift, device: torch.device) -> Tensor:
    """[kv_heads, inputs, width]: the maps that do what ``shift`` does without a fit."""
    strength = torch.full((shape.width,), shift.of_values, dtype=torch.float64, device=device)
    strength[: shape.key_dim] = shift.strength
    one = torch.zeros((shape.inputs, shape.width), dtype=torch.float64, device=device)
    one[: shape.width] = torch.diag(strength)
    return one.expand(shape.kv_heads, -1, -1).clone()


def choose_maps(learn: Equations, check: Equations, shift: MeanShift) -> tuple[Tensor, list[dict[str, float]]]:
    """For each layer the ridge that leaves least of what ``learn`` has not seen; and what was left, by layer."""
    shape = learn.shape
    plain = plain_maps(shape, shift, learn._products.device)
    maps, told = [], []
    for layer in range(shape.layers):
        tried = [(float("inf"), plain), *((ridge, learn.solve(layer, ridge, plain)) for ridge in RIDGES)]
        left = [check.left(layer, each) for _, each in tried]
        best = min(range(len(tried)), key=left.__getitem__)
        maps.append(tried[best][1])
        told.append({"ridge": tried[best][0], "left": round(left[best], 4), "left_plain": round(left[0], 4)})
    return torch.stack(maps).float(), told
