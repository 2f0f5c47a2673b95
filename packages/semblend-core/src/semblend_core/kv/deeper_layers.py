"""What a prompt says about rotation in deeper layers, for models whose layers rotate differently.

Keys of layer 0 are functions of their tokens. Behind it they are so in part only: what stands before a token has
changed them. But what two places with the same token have in common turns with their distance. A band that is turned
by a wrong frequency has less in common than it would have by one nearby: the pairs' distances tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from semblend_core.kv.equal_tokens import Bands, EqualTokens
from semblend_core.kv.rotation import Rotation

FAST = 2.0
"""Radians over the pairs' reach: bands that turn by less look alike however they are turned."""
LEAST = 0.15
"""Of 1, which equal keys have; 0 is what keys have that are turned anyhow."""
AMONG = 0.25
"""Of the bands that turn fast, this share may fall short: some hold little of their tokens."""
NEARBY = tuple(sign * angle for angle in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0) for sign in (1, -1))
"""Radians over the pairs' reach by which other frequencies are tried."""
BETTER = 0.9
"""A band that has less than this share of what another frequency would give it is turned wrongly."""


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """How much keys of equal tokens have in common in one layer, when they are turned to each other's places."""

    layer: int
    turned: float
    """In a band that is worse than most; 1 at most."""
    unturned: float
    """The same without turning them."""
    bands: int
    better_elsewhere: float
    """Share of the bands that another frequency would fit better."""

    @classmethod
    def of(cls, layer: int, pairs: EqualTokens, keys: tuple[Tensor, Tensor], rotation: Rotation) -> Likeness:
        """``keys``: [pairs, kv_heads, dim] on the CPU, at the first places of ``pairs`` and at the later ones."""
        first, later = (part.float() for part in keys)
        fast = rotation.frequencies * pairs.reach >= FAST
        if not fast.any():
            return cls(layer, 0.0, 0.0, 0, 1.0)

        def turned_by(turn: Rotation) -> Bands:
            return _in_common(turn.rotate(first, pairs.distances), later, rotation)[fast]

        turned, unturned = turned_by(rotation), _in_common(first, later, rotation)[fast]
        nearby = (replace(rotation, frequencies=rotation.frequencies + angle / pairs.reach) for angle in NEARBY)
        best = np.max([turned_by(other) for other in nearby], axis=0)
        worse = np.count_nonzero(~(turned >= BETTER * best)) / turned.size
        low, low_unturned = (float(np.quantile(each, AMONG)) for each in (turned, unturned))
        return cls(layer, low, low_unturned, turned.size, worse)

    @property
    def agrees(self) -> bool:
        return self.turned >= LEAST and self.better_elsewhere <= AMONG

    def describe(self) -> str:
        return (
            f"keys of equal tokens in layer {self.layer} have {self.turned:.2g} in common when turned and "
            f"{self.unturned:.2g} when not, in most of {self.bands} fast bands ({LEAST:g} at least is expected); other "
            f"frequencies would fit {self.better_elsewhere:.0%} of them better ({AMONG:.0%} at most is expected)"
        )


def _in_common(one: Tensor, other: Tensor, rotation: Rotation) -> Bands:
    """[size / 2] Correlation over pairs and heads of each band's two components."""

    def bands(keys: Tensor) -> Tensor:
        turning = keys[..., rotation.start : rotation.start + rotation.size].flatten(0, -2).double()
        shape, axis = ((-1, rotation.size // 2, 2), 2) if rotation.interleaved else ((-1, 2, rotation.size // 2), 1)
        return turning.view(shape).movedim(axis, -1)

    a, b = bands(one), bands(other)
    sizes = (a.square().sum((0, 2)) * b.square().sum((0, 2))).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    found: Bands = ((a * b).sum((0, 2)) / sizes).numpy()
    return found
