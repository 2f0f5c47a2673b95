"""A self-test that needs no forward of its own: the engine's KV must agree with itself.

Layer 0 has seen nothing but a token and its position. So wherever a prompt holds the same token twice, the first K of
layer 0, turned by the distance, must be the second, and their V must be equal. That proves on the real model, with the
engine's own kernels, that K is stored behind a rotary embedding of the frequencies we use, and that we read the pool
right.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.kv.rotation import Rotation

LARGEST_ERROR = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Relative, by the type of the pool: the engine rounds its K after turning it."""
FEWEST_PAIRS = 8
SHORTEST_MOVE = 8
"""Pairs closer than this say little about low frequencies."""

Positions = npt.NDArray[np.intp]


def pairs_of_equal_tokens(token_ids: npt.ArrayLike) -> tuple[Positions, Positions] | None:
    """Positions (first, later) of tokens that occur more than once; None where they are too few to prove anything."""
    ids = np.asarray(token_ids)
    order = np.argsort(ids, kind="stable")
    same = (ids[order][1:] == ids[order][:-1]).nonzero()[0]
    first, later = order[same], order[same + 1]
    far = later - first >= SHORTEST_MOVE
    return None if np.count_nonzero(far) < FEWEST_PAIRS else (first[far], later[far])


def why_pairs_disagree(
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor] | None,
    distances: Positions,
    rotation: Rotation,
    dtype: torch.dtype,
) -> str:
    """Why relocation cannot be trusted with this model; empty where it can.

    ``keys``, ``values``: float32 [pairs, kv_heads, dim] of layer 0, at the first places and at the later ones.
    ``dtype``: of the pool they were read from.
    """
    limit = LARGEST_ERROR.get(dtype, 1e-2)
    compared = [("K", rotation.rotate(keys[0], distances), keys[1])]
    if values is not None:
        compared.append(("V", *values))
    for what, ours, theirs in compared:
        error = _error(ours, theirs)
        if not error <= limit:
            return f"relocated {what} of layer 0 differs from computed {what} by {error:.2g}, more than {limit:g}"
    if _error(*keys) <= limit:
        return "K of layer 0 does not depend on its position: this model's keys are not stored after a rotary embedding"
    return ""


def _error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))
