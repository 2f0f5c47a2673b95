"""Mean shift inside SGLang's forward: in each layer, behind the store of its new KV and in front of its attention.

There the rows' fresh KV is compared with what was relocated to their places, and the rest of each span moves along.
SGLang's pool stores what all sequences of a batch computed in one call. Models that store in a kernel of their own say
so to attention, so the layer is corrected when that begins. Whichever comes first counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from semblend_core.kv import DeviceSlots, PagedMeanShift
from semblend_core.serving.tree import Load, SlotPool

logger = logging.getLogger(__name__)

MARK = "semblend_corrections"
"""The attribute under which a forward batch keeps the corrections of its requests."""


class Corrections:
    """Of all requests of one forward. Their spans lie in slots of their own, so none disturbs another."""

    def __init__(
        self, of_requests: list[PagedMeanShift], layers: int, ended: Callable[[bool, str | None], object]
    ) -> None:
        """``ended``: told when the forward is over whether something was to be corrected, and why it was not."""
        self._of_requests, self._ended = of_requests, ended
        self._wanted = bool(of_requests)
        self._left = set(range(layers)) if of_requests else set()
        self._fault: str | None = None

    def layer_is_stored(self, layer: int) -> None:
        """Correct it, once: a model may store in one call and attend in several."""
        if layer not in self._left:
            return
        self._left.remove(layer)
        try:
            for correction in self._of_requests:
                correction.apply(layer)
        except Exception:
            logger.exception("relocated KV was not corrected in layer %d", layer)
            self._of_requests = []
            self._fault = "the correction inside SGLang's forward failed"

    def forward_has_ended(self) -> None:
        if self._left:
            self._fault = self._fault or f"SGLang's forward did not say that it stored layer {min(self._left)}"
        self._ended(self._wanted, self._fault)


def correction_of(load: Load, row: Tensor, pool: SlotPool) -> PagedMeanShift | None:
    """What a request's claim wants, made on the stream of the forward. ``row``: the slots of its prompt."""
    claim = load.claim
    if claim.correction is None or not claim.rows:
        return None
    first, end = claim.spans[0].target_start, claim.spans[-1].target_end
    rows = np.concatenate([np.arange(*run) for run in claim.rows])
    return pool.correction(claim.correction, claim.spans, rows, DeviceSlots(row[first:end], first))


_under_way: Corrections | None = None
"""SGLang's runners copy a forward batch field by field, so what is hung on it does not reach the model."""


@contextmanager
def correcting(forward_batch: Any) -> Iterator[None]:
    """While the model runs ``forward_batch``."""
    global _under_way
    corrections: Corrections | None = getattr(forward_batch, MARK, None)
    if corrections is None:
        yield
        return
    _under_way = corrections
    try:
        yield
        corrections.forward_has_ended()
    finally:
        _under_way = None


def layer_is_stored(layer: Any) -> None:
    """SGLang's pool holds what the forward under way computed for ``layer``, an attention layer of SGLang's."""
    if _under_way is not None:
        _under_way.layer_is_stored(layer.layer_id)
