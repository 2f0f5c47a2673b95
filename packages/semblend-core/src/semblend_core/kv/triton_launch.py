"""Launching one kernel again and again with the same arguments but one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch


class Launch:
    """A kernel bound to its arguments, all but one integer, which the kernel must not specialise on.

    Triton finds the compiled kernel by all arguments, which takes the host longer than the launch itself; here it
    does so once. Pointers and sizes stay the same, so what it found stays right.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        arguments: dict[str, Any],
        varying: str,
        device: torch.device,
        options: dict[str, Any],
    ) -> None:
        self._kernel, self._grid, self._arguments, self._options = kernel, grid, arguments, options
        self._varying, self._device = varying, device
        names = kernel.arg_names
        self._before, self._after = (
            tuple(arguments[name] for name in part)
            for part in (names[: names.index(varying)], names[names.index(varying) + 1 :])
        )
        self._compiled: Any = None

    def __call__(self, value: int) -> None:
        """On the device's current stream."""
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            if self._compiled is not None:
                self._compiled(*self._before, value, *self._after)
                return
            compiled = self._kernel[self._grid](**self._arguments, **{self._varying: value}, **self._options)
            if compiled is not None:  # The interpreter compiles nothing.
                self._compiled = compiled[self._grid]
