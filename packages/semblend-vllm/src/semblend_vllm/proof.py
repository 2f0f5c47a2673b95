"""The self-test that needs no forward of its own.

The way in is proved at start, on vLLM's own placeholder block: what is written there must be read back bit by bit in
every layer, and what is moved by one position must be what the rotation says. Then the engine's KV must agree with
itself.

Layer 0 has seen nothing but a token and its position. So wherever a prompt holds the same token twice, the first K of
layer 0, turned by the distance, must be the second, and their V must be equal. That proves on the real model, with the
engine's own kernels, that K is stored behind a rotary embedding of the frequencies we use, and that we read the pool
right.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from semblend_core import Span
from semblend_core.kv import DonorKv, Rotation
from semblend_core.recompute import MeanShift
from semblend_vllm.engine_cache import EngineCache

LARGEST_ERROR = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
"""Relative, by the type of the cache: the engine rounds its K after turning it."""
FEWEST_PAIRS = 8
SHORTEST_MOVE = 8
"""Pairs closer than this say little about low frequencies."""


PLACEHOLDER_BLOCK = 0
"""vLLM keeps it for itself and never reads what is in it."""


def of_the_way_in(cache: EngineCache, rotation: Rotation) -> str:
    """Why KV cannot be written into the engine's pool as it is read; empty where it can."""
    tokens = cache.block_size
    before = cache.gather([PLACEHOLDER_BLOCK], tokens)
    assert before.values is not None
    try:
        keys, values = (torch.randn(each.shape).to(each) for each in (before.keys, before.values))
        noise = DonorKv(keys, values)
        cache.scatter([PLACEHOLDER_BLOCK], [(noise, Span(0, "noise", 0, tokens))])
        if not _same(cache.gather([PLACEHOLDER_BLOCK], tokens), keys, values):
            return "KV that was written to the engine's pool is not what is read back"
        if tokens > 1:
            cache.scatter([PLACEHOLDER_BLOCK], [(noise, Span(1, "noise", 0, tokens - 1))])
            turned = torch.stack([rotation.rotate(layer[:-1], 1) for layer in keys])
            if not _same(cache.gather([PLACEHOLDER_BLOCK], tokens), turned, values[:, :-1], skipped=1):
                return "K that was moved by one position is not K turned by one position"
            _compile_correction(cache)
    finally:
        cache.scatter([PLACEHOLDER_BLOCK], [(before, Span(0, "before", 0, tokens))])
    return ""


def _compile_correction(cache: EngineCache) -> None:
    """Its first use would otherwise hold up a step."""
    correction = cache.correction(
        [PLACEHOLDER_BLOCK], [Span(0, "noise", 0, 2)], np.zeros(1, np.int64), MeanShift(1.0, min_rows=1)
    )
    for layer in range(cache.layers):
        correction.apply(layer)


def _same(donor: DonorKv, keys: torch.Tensor, values: torch.Tensor, skipped: int = 0) -> bool:
    assert donor.values is not None
    return torch.equal(donor.keys[:, skipped:], keys) and torch.equal(donor.values[:, skipped:], values)


def pairs_of_equal_tokens(token_ids: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Positions (first, later) of tokens that occur more than once."""
    ids = np.asarray(token_ids)
    order = np.argsort(ids, kind="stable")
    same = (ids[order][1:] == ids[order][:-1]).nonzero()[0]
    first, later = order[same], order[same + 1]
    far = later - first >= SHORTEST_MOVE
    return first[far], later[far]


def failure(donor: DonorKv, token_ids: npt.ArrayLike, rotation: Rotation) -> str | None:
    """Why relocation cannot be trusted with this model; empty where it can, None where this prompt proves nothing."""
    first, later = pairs_of_equal_tokens(token_ids)
    if first.size < FEWEST_PAIRS or donor.values is None:
        return None
    keys, values = donor.keys[0].float(), donor.values[0].float()
    turned = rotation.rotate(keys[first], later - first)
    limit = LARGEST_ERROR.get(str(donor.keys.dtype).removeprefix("torch."), 1e-2)
    for what, ours, theirs in (("K", turned, keys[later]), ("V", values[first], values[later])):
        error = float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))
        if not error <= limit:
            return f"relocated {what} of layer 0 differs from computed {what} by {error:.2g}, more than {limit:g}"
    unturned = float((keys[first] - keys[later]).norm() / keys[later].norm().clamp(min=1e-12))
    if unturned <= limit:
        return "K of layer 0 does not depend on its position: this model's keys are not stored after a rotary embedding"
    return ""
