"""The self-test that needs no forward: where a prompt holds a token twice, the pool must agree with itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from semblend_core.kv import KvPool, pairs_of_equal_tokens, why_pairs_disagree

MOST_PAIRS = 256


def failure(pool: KvPool, slots: torch.Tensor, token_ids: npt.ArrayLike) -> str | None:
    """Why relocation cannot be trusted with this model; empty where it can, None where this prompt proves nothing.

    ``slots`` are those of the prompt's tokens. Waits for the device: it is asked until it has answered once.
    """
    pairs = pairs_of_equal_tokens(token_ids)
    if pairs is None:
        return None
    first, later = (places[:MOST_PAIRS] for places in pairs)
    there = pool.first_layer(slots[torch.from_numpy(np.concatenate((first, later))).to(slots.device)])
    keys, values = (None if part is None else part.float().cpu().split(first.size) for part in there)
    assert keys is not None
    return why_pairs_disagree(keys, values, later - first, pool.rotation, pool.views.dtype)
