"""The self-test that needs no forward: where a prompt holds a token twice, the pool must agree with itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from semblend_core import SelfTestResult
from semblend_core.kv import RotationProof
from semblend_sglang.pool import KvPool


def judge(
    proof: RotationProof, pool: KvPool, read_slots: Callable[[], torch.Tensor], token_ids: npt.ArrayLike
) -> SelfTestResult | None:
    """What the self-test knows now, where this prompt has changed it.

    ``read_slots`` gives the slots of the prompt's tokens. Waits for the device, for prompts that it needs only.
    """
    pairs = proof.pairs_wanted(token_ids)
    if pairs is None:
        return None
    slots = read_slots()
    places = torch.from_numpy(np.concatenate((pairs.first, pairs.later))).to(slots.device)
    keys, values = (None if part is None else part.cpu() for part in pool.first_layer(slots[places]))
    assert keys is not None
    count = pairs.first.size
    return proof.judge(
        pairs, (keys[:count], keys[count:]), None if values is None else (values[:count], values[count:])
    )
