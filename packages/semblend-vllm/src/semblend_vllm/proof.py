"""The self-test that needs no forward of its own.

The way in is proved at start, on vLLM's own placeholder block: what is written there must be read back bit by bit in
every layer, and what is moved by one position must be what the rotation says. Then the KV of a captured prompt must
agree with itself wherever it holds a token twice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from semblend_core import SelfTestResult, Span
from semblend_core.kv import DonorKv, Rotation, RotationProof
from semblend_core.recompute import MeanShift
from semblend_vllm.engine_cache import EngineCache

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


def judge(proof: RotationProof, donor: DonorKv, token_ids: npt.ArrayLike) -> SelfTestResult | None:
    """What the self-test knows now, where the KV of this prompt has changed it. Waits for the device if it reads it."""
    pairs = proof.pairs_wanted(token_ids)
    if pairs is None or donor.values is None:
        return None
    places = torch.from_numpy(np.concatenate((pairs.first, pairs.later))).to(donor.keys.device)
    keys, values = (part[0][places].cpu() for part in (donor.keys, donor.values))
    count = pairs.first.size
    return proof.judge(pairs, (keys[:count], keys[count:]), (values[:count], values[count:]))
