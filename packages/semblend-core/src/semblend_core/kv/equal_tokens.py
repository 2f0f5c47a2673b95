"""What a prompt says about rotation: K and V of layer 0 at two places that hold the same token.

Layer 0 has seen nothing but a token and its position. So K at the first place, turned by the distance, must be K at
the later place, and V must be the same. The comparison is made per frequency band, a band being the pair of
components that turns with one frequency, over all heads. Each band is measured by its own size. A model may keep most
of its K in slow bands, as a constant bias. Such bands hardly turn, and they are large: in one figure for the whole of
K they would hide the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.kv.rotation import Rotation

Positions = npt.NDArray[np.intp]
Bands = npt.NDArray[np.float64]

ROUNDING = {
    torch.float32: 1e-4,
    torch.float16: 3e-3,
    torch.bfloat16: 2e-2,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}
"""By the type of the pool: the largest error, as a share of a band, that an engine makes by rounding.

Of fp8 it is what one number may be off by. Over the numbers of a band both roundings, of K that is turned and of K that
it is compared with, come to six tenths of it."""
FINEST = {torch.float8_e4m3fn: 2.0**-9, torch.float8_e5m2: 2.0**-16}
"""The step between the smallest numbers of fp8. A band of that size keeps nothing of its keys, and cannot tell."""
OTHER_ROUNDING = 1e-2
ANGLE_ROUNDING = 2.0**-22
"""Of an angle: engines multiply position and frequency in float32, and each may be off in its last place."""
MOST_NOISE = 0.15
"""However much an engine's V differs, no more is forgiven to its K."""
VISIBLE = 4.0
"""A turn shows in a band that it changes by so many times what rounding could."""
PLAIN = 4.0
"""An error of so many times what rounding could is no rounding."""
FEWEST_PAIRS = 8
MOST_PAIRS = 64
"""The engine's thread waits for them."""
SHORTEST_MOVE = 8
"""Pairs closer than this say little about low frequencies."""


@dataclass(frozen=True, slots=True, eq=False)
class EqualTokens:
    """Pairs of places in a prompt that hold the same token, at most one pair for each token."""

    first: Positions
    later: Positions

    @classmethod
    def of(cls, token_ids: npt.ArrayLike) -> EqualTokens | None:
        """The first and the last place of each token that comes twice; None where they are too few to prove anything.

        Long distances show slow frequencies, and different tokens show whether V is read from its own place.
        """
        ids = np.asarray(token_ids)
        first = np.unique(ids, return_index=True)[1]
        later = ids.size - 1 - np.unique(ids[::-1], return_index=True)[1]
        far = np.flatnonzero(later - first >= SHORTEST_MOVE)
        if far.size < FEWEST_PAIRS:
            return None
        by_distance = far[np.argsort((later - first)[far], kind="stable")]
        # Evenly from all of them, the farthest included.
        kept = by_distance[np.linspace(0, far.size - 1, min(far.size, MOST_PAIRS)).round().astype(np.intp)]
        return cls(first[kept], later[kept])

    @property
    def distances(self) -> Positions:
        return self.later - self.first

    @property
    def reach(self) -> float:
        """The distance over which they show a frequency, in tokens: the root of the mean square."""
        return float(np.sqrt(np.mean(np.square(self.distances, dtype=np.float64))))


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """How K and V of equal tokens compare. Errors are shares of a band's size, [bands]."""

    frequencies: Bands
    """Radians per token; 0 in the bands behind them, of components that do not turn."""
    turned: Bands
    """How far K, turned by the distance, is from K that the engine computed."""
    unturned: Bands
    """The same without turning it."""
    turn: Bands
    """How far turning takes K."""
    limit: Bands
    """The largest error that is rounding."""
    values: float
    """How far V of equal tokens are apart, as a share of how far V of different ones are."""
    reach: float

    @classmethod
    def between(
        cls,
        pairs: EqualTokens,
        keys: tuple[Tensor, Tensor],
        values: tuple[Tensor, Tensor] | None,
        rotation: Rotation,
    ) -> Agreement:
        """``keys``, ``values``: [pairs, kv_heads, dim] on the CPU, at the first places and at the later ones.

        They have the type of the pool that they were read from: it says how they were rounded.
        """
        first, later = (part.float() for part in keys)
        turned = rotation.rotate(first, pairs.distances)
        size = _by_band(later, rotation).clip(min=float(torch.finfo(torch.float32).tiny))
        frequencies = np.append(rotation.frequencies, np.zeros(size.size - rotation.frequencies.size))
        values_apart, values_noise = (0.0, 0.0) if values is None else _apart(*values)
        # V has no position: what differs in it differs by the engine's arithmetic, such as a scale of each batch.
        noise = max(ROUNDING.get(keys[0].dtype, OTHER_ROUNDING), min(3 * values_noise, MOST_NOISE))
        return cls(
            frequencies=frequencies,
            turned=_by_band(turned - later, rotation) / size,
            unturned=_by_band(first - later, rotation) / size,
            turn=_by_band(turned - first, rotation) / size,
            limit=noise
            + FINEST.get(keys[0].dtype, 0.0) / size
            + np.abs(frequencies) * float(pairs.later.max()) * ANGLE_ROUNDING,
            values=values_apart,
            reach=pairs.reach,
        )

    @property
    def visible(self) -> npt.NDArray[np.bool_]:
        """The bands in which a turn can be told from none."""
        return self.turn >= VISIBLE * self.limit

    @property
    def shows_turning(self) -> bool:
        """Whether a turn can be told from none in at least a quarter of the bands that should turn."""
        return bool(np.count_nonzero(self.visible) * 4 >= np.count_nonzero(self.frequencies))

    @property
    def keys_agree(self) -> bool:
        return bool((self.turned <= self.limit).all())

    @property
    def values_agree(self) -> bool:
        return self.values <= MOST_NOISE

    @property
    def agrees(self) -> bool:
        return self.keys_agree and self.values_agree

    @property
    def plainly_disagrees(self) -> bool:
        """By far more than any rounding."""
        return not (self.turned <= PLAIN * self.limit).all() or not self.values <= PLAIN * MOST_NOISE

    def describe(self) -> str:
        """The figures in one sentence, with the name of what disagrees first."""
        if not self.keys_agree:
            return self._of_keys()
        if not self.values_agree:
            return (
                f"V of layer 0 is not that of its token: for equal tokens it differs by {self.values:.2g} of what it "
                f"differs by for others, {MOST_NOISE:g} at most is expected"
            )
        worst = int(np.argmax(self.turned / self.limit))
        return (
            f"turned K of layer 0 agrees with computed K to {self.turned[worst]:.2g} of its size in the worst band "
            f"(limit {self.limit[worst]:.2g}), unturned K is off by {self._off_without_turning:.2g}; a turn shows in "
            f"{self._count_of_visible}, over {self.reach:.0f} tokens"
        )

    def _of_keys(self) -> str:
        wrong = ~(self.turned <= self.limit)
        worst = int(np.argmax(np.nan_to_num(self.turned / self.limit, nan=np.inf)))
        figures = (
            f"relocated K of layer 0 differs from computed K in {np.count_nonzero(wrong)} of {wrong.size} frequency "
            f"bands: in that of {self.frequencies[worst]:.2g} rad per token it is off by {self.turned[worst]:.2g} of "
            f"its size when turned and by {self.unturned[worst]:.2g} when not, {self.limit[worst]:.2g} at most is "
            f"rounding; a turn would show in {self._count_of_visible}, over {self.reach:.0f} tokens"
        )
        if (self.unturned <= self.limit).all():
            figures += "; K does not depend on its position: it is not stored after a rotary embedding"
        return figures

    @property
    def _off_without_turning(self) -> float:
        return float(np.sqrt(np.mean(np.square(self.unturned[self.visible]))))

    @property
    def _count_of_visible(self) -> str:
        return f"{np.count_nonzero(self.visible)} of {np.count_nonzero(self.frequencies)} bands"


def _by_band(keys: Tensor, rotation: Rotation) -> Bands:
    """Root of the mean square over pairs and heads, [size / 2 + components that do not turn]."""
    squares: Bands = keys.square().flatten(0, -2).mean(0).double().numpy()
    end = rotation.start + rotation.size
    turning = squares[rotation.start : end]
    shape, axis = ((-1, 2), 1) if rotation.interleaved else ((2, -1), 0)
    still = np.append(squares[: rotation.start], squares[end:])
    sizes: Bands = np.sqrt(np.append(turning.reshape(shape).sum(axis), still))
    return sizes


def _apart(first: Tensor, later: Tensor) -> tuple[float, float]:
    """How far V are apart, as a share of how far V of different tokens are, and as a share of V.

    What all tokens have in common, a bias, tells nothing about whose V it is.
    """
    first, later = first.float(), later.float()
    error = (first - later).square().mean()
    spread = 2 * (later - later.mean(0)).square().mean()
    size = later.square().mean()
    tiny = torch.finfo(torch.float32).tiny
    return float((error / spread.clamp(min=tiny)).sqrt()), float((error / size.clamp(min=tiny)).sqrt())
