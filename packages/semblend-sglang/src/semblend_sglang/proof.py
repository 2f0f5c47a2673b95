"""The self-test that needs no forward of its own: the engine's KV must agree with itself.

Layer 0 has seen nothing but a token and its position. So wherever a prompt holds the same token twice, the first K of
layer 0, turned by the distance, must be the second, and their V must be equal. That proves on the real model, with the
engine's own kernels, that K is stored behind a rotary embedding of the frequencies we use, and that we read the pool
right.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from semblend_core.kv import Rotation
from semblend_sglang.pool import KvPool

LARGEST_ERROR = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
"""Relative, by the type of the pool: the engine rounds its K after turning it."""
FEWEST_PAIRS = 8
MOST_PAIRS = 256
SHORTEST_MOVE = 8
"""Pairs closer than this say little about low frequencies."""


def pairs_of_equal_tokens(token_ids: npt.ArrayLike) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Positions (first, later) of tokens that occur more than once."""
    ids = np.asarray(token_ids)
    order = np.argsort(ids, kind="stable")
    same = (ids[order][1:] == ids[order][:-1]).nonzero()[0]
    first, later = order[same], order[same + 1]
    far = later - first >= SHORTEST_MOVE
    return first[far][:MOST_PAIRS], later[far][:MOST_PAIRS]


def failure(pool: KvPool, slots: torch.Tensor, token_ids: npt.ArrayLike) -> str | None:
    """Why relocation cannot be trusted with this model; empty where it can, None where this prompt proves nothing.

    ``slots`` are those of the prompt's tokens. Waits for the device: it is asked until it has answered once.
    """
    first, later = pairs_of_equal_tokens(token_ids)
    if first.size < FEWEST_PAIRS:
        return None
    there = pool.first_layer(slots[torch.from_numpy(np.concatenate((first, later))).to(slots.device)])
    keys, values = (None if part is None else part.float().cpu() for part in there)
    assert keys is not None
    limit = LARGEST_ERROR.get(str(pool.views.dtype).removeprefix("torch."), 1e-2)
    return _judge(keys, values, first.size, later - first, pool.rotation, limit)


def _judge(
    keys: torch.Tensor,
    values: torch.Tensor | None,
    pairs: int,
    distances: npt.NDArray[np.intp],
    rotation: Rotation,
    limit: float,
) -> str:
    turned = _error(rotation.rotate(keys[:pairs], distances), keys[pairs:])
    if not turned <= limit:
        return f"relocated K of layer 0 differs from computed K by {turned:.2g}, more than {limit:g}"
    if values is not None and not _error(values[:pairs], values[pairs:]) <= limit:
        return "V of layer 0 differs between equal tokens: the pool is not read as the engine writes it"
    if _error(keys[:pairs], keys[pairs:]) <= limit:
        return "K of layer 0 does not depend on its position: this model's keys are not stored after a rotary embedding"
    return ""


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))
