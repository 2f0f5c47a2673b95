"""The self-test that needs no forward of its own: the engine's KV must agree with itself.

Layer 0 has seen nothing but a token and its position. So wherever a prompt holds the same token twice, the first K of
layer 0, turned by the distance, must be the second, and their V must be equal. That proves on the real model, with the
engine's own kernels, that K is stored behind a rotary embedding of the frequencies we use, and that we read the pool
right. Written back and read again it must be the same bits, which proves the way in.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semblend_core.kv import DonorKv, Rotation

LARGEST_ERROR = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
"""Relative, by the type of the cache: the engine rounds its K after turning it."""
FEWEST_PAIRS = 8
SHORTEST_MOVE = 8
"""Pairs closer than this say little about low frequencies."""


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
