"""The self-test that needs no forward of its own.

The way in is proved at start, on a block that the engine never reads: what is written there must be read back bit by
bit in every layer, and what is moved by one position must be what the rotation says. Then the KV of a captured prompt
must agree with itself wherever it holds a token twice, and in fp8 its keys must be stored finely enough to be moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from semblend_core.contract import SelfTestResult, Span
from semblend_core.kv import DonorKv, Rotation, RotationProof
from semblend_core.kv.donor_kv import indexable
from semblend_core.kv.layout import FP8_LARGEST
from semblend_core.serving.warming import compile_correction
from semblend_core.serving.worker.memory import KvMemory


def of_the_way_in(memory: KvMemory, rotations: Sequence[Rotation], unused_block: int) -> str:
    """Why KV cannot be written into the engine's pool as it is read; empty where it can.

    ``rotations``: by layer. ``unused_block``: one that the engine keeps for itself, and whose content it never reads.
    """
    tokens = memory.block_size
    before = memory.gather([unused_block], tokens)
    try:
        keys = torch.randn(before.keys.shape).to(before.keys)
        values = None if before.values is None else torch.randn(before.values.shape).to(before.values)
        noise = DonorKv(keys, values)
        memory.scatter([unused_block], [(noise, Span(0, "noise", 0, tokens))])
        if not _same(memory.gather([unused_block], tokens), noise):
            return "KV that was written to the engine's pool is not what is read back"
        if tokens > 1:
            memory.scatter([unused_block], [(noise, Span(1, "noise", 0, tokens - 1))])
            turned = [turn.rotate(layer[:-1], 1) for turn, layer in zip(rotations, keys, strict=True)]
            stacked = torch.stack([indexable(layer) for layer in turned]).view(keys.dtype)
            moved = DonorKv(stacked, None if values is None else values[:, :-1])
            if not _same(memory.gather([unused_block], tokens), moved, skipped=1):
                return "K that was moved by one position is not K turned by one position"
            compile_correction(
                lambda shift, spans, rows: memory.correction([unused_block], spans, rows, shift),
                Span(0, "noise", 0, 2),
                memory.layers,
            )
    finally:
        memory.scatter([unused_block], [(before, Span(0, "before", 0, tokens))])
    return ""


def _same(donor: DonorKv, wanted: DonorKv, skipped: int = 0) -> bool:
    def equal(read: torch.Tensor, written: torch.Tensor) -> bool:
        return torch.equal(indexable(read[:, skipped:]), indexable(written))

    if donor.values is None or wanted.values is None:
        return donor.values is wanted.values and equal(donor.keys, wanted.keys)
    return equal(donor.keys, wanted.keys) and equal(donor.values, wanted.values)


def judge(proof: RotationProof, donor: DonorKv, token_ids: npt.ArrayLike) -> SelfTestResult | None:
    """What the self-test knows now, where the KV of this prompt has changed it. Waits for the device if it reads it."""
    pairs = proof.pairs_wanted(token_ids)
    if pairs is None:
        return None
    places = torch.from_numpy(np.concatenate((pairs.first, pairs.later))).to(donor.keys.device)
    count = pairs.first.size

    def at_both(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        there = indexable(part)[places].cpu().view(part.dtype)
        return there[:count], there[count:]

    values = None if donor.values is None else at_both(donor.values[0])
    deeper = {layer: at_both(donor.keys[layer]) for layer in proof.deeper}
    first = places[:count]
    is_fp8 = donor.keys.dtype in FP8_LARGEST
    all_layers = indexable(donor.keys).index_select(1, first).cpu().view(donor.keys.dtype) if is_fp8 else None
    return proof.judge(pairs, at_both(donor.keys[0]), values, deeper, all_layers)
