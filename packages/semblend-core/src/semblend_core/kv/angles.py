"""cos and sin of every distance up to some length, kept on the device: one pair of tables per rotation."""

from __future__ import annotations

from functools import lru_cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from semblend_core.kv.moves import upload
from semblend_core.kv.rotation import Rotation

_FEWEST = 4096
"""Positions a table begins with; it doubles from there."""


class Angles:
    """Float32 tables [positions, size / 2], with the numbers of ``Rotation.cos_sin``. Safe from several threads.

    They are made on the device, in float64: 32,768 positions would take the host some 60 ms.
    """

    def __init__(self, rotation: Rotation, device: torch.device) -> None:
        self._rotation, self._device = rotation, device
        self._lock = Lock()
        self._made: list[tuple[Tensor, Tensor, Any]] = []
        """The last is the longest. Those before are kept: kernels on any stream may still read them."""

    def upto(self, positions: int) -> tuple[Tensor, Tensor]:
        """Tables with at least so many positions, in order on the device's current stream."""
        with self._lock:
            if not self._made or self._made[-1][0].shape[0] < positions:
                self._made.append(self._make(max(_FEWEST, 1 << (positions - 1).bit_length())))
            cos, sin, ready = self._made[-1]
        if ready is not None:
            torch.cuda.current_stream(self._device).wait_event(ready)
        return cos, sin

    def _make(self, positions: int) -> tuple[Tensor, Tensor, Any]:
        (frequencies,) = upload([self._rotation.frequencies], self._device)
        angles = torch.arange(positions, dtype=torch.float64, device=self._device)[:, None] * frequencies
        tables = angles.cos().float(), angles.sin().float()
        on_gpu = self._device.type == "cuda"
        return *tables, torch.cuda.current_stream(self._device).record_event() if on_gpu else None


@lru_cache(maxsize=8)
def _angles(rotation: Rotation, device: torch.device) -> Angles:
    return Angles(rotation, device)


def resident_angles(rotation: Rotation, device: torch.device, positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin of 0 to at least ``positions`` tokens, made at the first call and whenever they must grow."""
    return _angles(rotation, device).upto(positions)
