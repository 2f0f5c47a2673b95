"""What moving keys costs where they are stored as fp8: they are rounded a second time, at another angle.

The step of fp8 is up to an eighth of a number (e5m2: a quarter). Where most of K is a bias that all tokens share, as in
the first layer of Qwen2.5, a step of the bias is larger than what tells one token's key from another's. A key that was
moved and one that was computed in its place are then rounded differently, and attention sees that more than their
tokens. Keys that were moved by other distances differ among each other, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semblend_core.kv.equal_tokens import Positions
from semblend_core.kv.layout import FP8_LARGEST, narrow
from semblend_core.kv.rotation import Rotation

MOVES = np.array([8, 32, 128, 512, 2048, 8192, 32768])
"""Tokens by which keys are moved, in turn. Slow bands, where biases are, are rounded anew after long moves only: the
distances of a prompt say little of what others will ask for."""
MOST = 0.25
"""Of what tells keys apart. SmolLM2-135M has 0.1 in its worst layer (e5m2: 0.17), and may be moved. Qwen2.5-Coder-1.5B
has 1.3 (1.8), and may not; with a fifth of its bias it would have 0.2 (0.3)."""


@dataclass(frozen=True, slots=True)
class SecondRounding:
    """In the layer that loses most: how far rounding takes moved keys, as a share of what tells keys apart."""

    layer: int
    share: float
    dtype: torch.dtype

    @classmethod
    def of(cls, keys: Tensor, positions: Positions, rotations: Sequence[Rotation]) -> SecondRounding | None:
        """``keys``: [layers, tokens, kv_heads, dim] on the CPU, as stored at these positions of a prompt, of different
        tokens. ``rotations``: by layer. None where they are not fp8: finer types lose nothing that counts.
        """
        if keys.dtype not in FP8_LARGEST:
            return None
        shares = [_share(layer, positions, turn) for layer, turn in zip(keys, rotations, strict=True)]
        worst = int(np.argmax(np.nan_to_num(shares, nan=np.inf)))
        return cls(worst, shares[worst], keys.dtype)

    @property
    def agrees(self) -> bool:
        return self.share <= MOST

    def describe(self) -> str:
        kind = "fp8_e5m2" if self.dtype == torch.float8_e5m2 else "fp8_e4m3"
        figures = (
            f"rounding moved K to {kind} changes it by {self.share:.2g} of what tells keys of different tokens apart, "
            f"in layer {self.layer} (limit {MOST:g})"
        )
        if self.agrees:
            return figures
        return (
            f"{figures}: {kind} keeps too little of this model's keys for them to be moved. Use --kv-cache-dtype auto. "
            "Scales from calibration help only where keys are too large for the type: steps grow with the numbers"
        )


def _share(keys: Tensor, positions: Positions, rotation: Rotation) -> float:
    """Of one layer: root of the mean square over heads."""
    moves = MOVES[np.arange(positions.size) % MOVES.size]
    wide = keys.float()
    moved = rotation.rotate(wide, moves)
    error = _squares_by_band(narrow(moved, keys.dtype).float() - moved, rotation).mean(-1)
    alike = rotation.rotate(wide, -positions)
    # Of most bands: where a bias has coarse steps, keys that fall on either side of one seem to lie far apart.
    apart = _squares_by_band(alike - alike.mean(0), rotation).median(-1).values
    share = error / apart.clamp(min=torch.finfo(torch.float32).tiny)
    return float(share.mean().sqrt())


def _squares_by_band(keys: Tensor, rotation: Rotation) -> Tensor:
    """[kv_heads, size / 2] Mean over tokens, of what turns."""
    squares = keys[..., rotation.start : rotation.start + rotation.size].square().mean(0)
    shape, axis = ((-1, 2), -1) if rotation.interleaved else ((2, -1), -2)
    return squares.view(squares.shape[0], *shape).sum(axis)
