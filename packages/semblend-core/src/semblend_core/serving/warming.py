"""What is compiled at its first use is used at start, where nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from semblend_core.contract import Span
from semblend_core.recompute import ROW_SHIFT, MeanShift


class AppliedByLayer(Protocol):
    def apply(self, layer: int) -> object: ...


def compile_correction(
    make: Callable[[MeanShift, Sequence[Span], npt.NDArray[np.int64]], AppliedByLayer], span: Span, layers: int
) -> None:
    """Correct ``span``, which nobody reads, by its first token in every layer. ``make``: of a shift, spans and rows."""
    first = np.arange(span.target_start, span.target_start + 1)
    correction = make(replace(ROW_SHIFT, min_rows=1), [span], first)
    for layer in range(layers):
        correction.apply(layer)
