"""Moving a key along the sequence: the rotation that takes it from one position to another.

RoPE turns each pair of a key's components by ``position * frequency``. Turning by ``shift * frequency`` more is the
same as having computed the key ``shift`` positions further on, whatever the position was. A constant on cos and sin
(YaRN's attention scale) is in the stored key already and stays there, so a move is a pure rotation in every case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.kv.layout import narrow
from semblend_core.kv.rope_config import RopeConfig, layer_kinds, read_rope_config
from semblend_core.kv.rope_scaling import UnsupportedRotationError

Shifts: TypeAlias = Sequence[int] | npt.NDArray[np.integer]

__all__ = ["Rotation", "Shifts", "UnsupportedRotationError", "turn_pairs"]


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Which part of a key turns with its position, and how fast."""

    key_dim: int
    """Size of a stored key's last dimension, in components."""
    start: int
    """First component that turns. 0, except in MLA's latent cache, where the rotated part follows the latent."""
    size: int
    """How many components turn, an even number; the others are copied."""
    interleaved: bool
    """True: (2i, 2i + 1) form a pair. False: (i, i + size / 2) do."""
    frequencies: npt.NDArray[np.float64]
    """[size / 2] radians per token: the model's own float32 numbers, widened so that angles lose nothing."""

    def __post_init__(self) -> None:
        if self.size < 2 or self.size % 2 or self.start < 0 or self.start + self.size > self.key_dim:
            raise UnsupportedRotationError(
                f"cannot rotate components {self.start} to {self.start + self.size} of a key of {self.key_dim}"
            )
        if self.frequencies.shape != (self.size // 2,):
            raise UnsupportedRotationError(
                f"{self.size} components need {self.size // 2} frequencies, got {self.frequencies.shape}"
            )

    @classmethod
    def from_config(cls, config: object, *, interleaved: bool | None = None, text_only: bool = False) -> Rotation:
        """The rotation of the model with this ``config``: a dict (config.json) or a transformers config.

        ``interleaved`` overrules what is known of the architecture, and is needed for one that is not known.
        ``text_only``: keys of prompts with images are never moved, so that a position's parts (mrope) are equal. Raises
        :class:`UnsupportedRotationError`, naming the field, where keys do not move by a rotation or it is not known.
        """
        return cls._of(read_rope_config(config, interleaved, text_only=text_only))

    @classmethod
    def by_layer(cls, config: object, layers: int, *, text_only: bool = False) -> tuple[Rotation, ...]:
        """Of each of a model's ``layers``: layers that rotate alike have one and the same. Raises as the other."""
        kinds = layer_kinds(config)
        if not kinds:
            return (cls.from_config(config, text_only=text_only),) * layers
        if len(kinds) != layers:
            raise UnsupportedRotationError(f"layer_types names {len(kinds)} layers, and {layers} have KV of their own")
        made = {
            kind: cls._of(read_rope_config(config, None, kind, text_only=text_only)) for kind in dict.fromkeys(kinds)
        }
        return tuple(made[kind] for kind in kinds)

    @classmethod
    def _of(cls, rope: RopeConfig) -> Rotation:
        frequencies = rope.frequencies.numpy().astype(np.float64)
        return cls(rope.key_dim, rope.start, rope.size, rope.interleaved, frequencies)

    def cos_sin(self, shifts: Shifts) -> tuple[Tensor, Tensor]:
        """Two float32 tables [shifts, size / 2] on the CPU. Angles are built in float64: shifts reach 10**6."""
        angles = np.asarray(shifts, np.float64)[:, None] * self.frequencies
        return (
            torch.from_numpy(np.cos(angles).astype(np.float32)),
            torch.from_numpy(np.sin(angles).astype(np.float32)),
        )

    def rotate(self, keys: Tensor, shifts: int | np.integer | Shifts) -> Tensor:
        """``keys`` [tokens, ..., key_dim], moved by ``shifts`` tokens: one for all, or one for each. A new tensor.

        The maths is float32, the result has the keys' type, where fp8 saturates. A shift of 0 returns the same bits
        (with fp8: of finite numbers).
        """
        if keys.shape[-1] != self.key_dim:
            raise ValueError(f"keys have {keys.shape[-1]} components, the rotation is for {self.key_dim}")
        each = np.full(keys.shape[0], shifts) if isinstance(shifts, Integral) else np.asarray(shifts)
        if each.shape != (keys.shape[0],):
            raise ValueError(f"{keys.shape[0]} keys need as many shifts, got {each.shape}")
        shape = (keys.shape[0], *(1,) * (keys.dim() - 2), self.size // 2)
        cos, sin = (table.to(keys.device).reshape(shape) for table in self.cos_sin(each))
        moved = keys.clone()
        turning = moved[..., self.start : self.start + self.size]
        turned = turn_pairs(turning.to(torch.float32), cos, sin, interleaved=self.interleaved)
        turning.copy_(narrow(turned, keys.dtype))
        return moved


def layers_alike(rotations: Sequence[Rotation]) -> list[list[int]]:
    """The layers that turn keys alike, by kind. ``rotations``: by layer, as :meth:`Rotation.by_layer` gives them."""
    kinds: dict[int, list[int]] = {}
    for layer, rotation in enumerate(rotations):
        kinds.setdefault(id(rotation), []).append(layer)
    return list(kinds.values())


def why_keys_do_not_move(config: object, *, by_layer: bool = False, text_only: bool = False) -> str | None:
    """Why the keys of the model with this ``config`` cannot be moved; None where they can.

    ``by_layer``: who asks can turn each layer's keys by a rotation of its own. ``text_only``: it moves none of prompts
    with images.
    """
    try:
        kinds = layer_kinds(config) if by_layer else ()
        if kinds:
            Rotation.by_layer(config, len(kinds), text_only=text_only)
        else:
            Rotation.from_config(config, text_only=text_only)
    except UnsupportedRotationError as error:
        return str(error)
    return None


def turn_pairs(components: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Float32 ``components`` [..., size], each pair turned by the angle of ``cos`` and ``sin`` [..., size / 2].

    The kernel does the same operations in the same order, each rounded on its own, so both give the same bits. sin is
    0 for a shift of 0 only; the components are then kept as they are, with the sign of a zero and any infinity.
    """
    if interleaved:
        first, second = components[..., 0::2], components[..., 1::2]
    else:
        half = components.shape[-1] // 2
        first, second = components[..., :half], components[..., half:]
    turned_first = torch.where(sin == 0, first, first * cos - second * sin)
    turned_second = torch.where(sin == 0, second, second * cos + first * sin)
    if interleaved:
        return torch.stack((turned_first, turned_second), dim=-1).flatten(-2)
    return torch.cat((turned_first, turned_second), dim=-1)
