"""What the adapters' own tests share: prompts, and measures for how far two answers, or their KV, lie apart."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor


def passage(seed: int, tokens: int) -> list[int]:
    """Reproducible token ids that share no run with the passage of another seed."""
    source = random.Random(seed)
    return [source.randrange(1000, 30000) for _ in range(tokens)]


Token = TypeVar("Token", int, str)


def divergence(cold: Sequence[Mapping[Token, float]], other: Sequence[Mapping[Token, float]]) -> float:
    """Mean KL(cold || other) in nats over the steps up to the first that answers differently, that one included.

    Each step holds log-probabilities of its top tokens. What ``other`` does not name is at most as likely as its last.
    """
    total, steps = 0.0, 0
    for ours, theirs in zip(cold, other, strict=True):
        floor = min(theirs.values())
        total += sum(math.exp(value) * (value - theirs.get(token, floor)) for token, value in ours.items())
        steps += 1
        if max(ours, key=ours.__getitem__) != max(theirs, key=theirs.__getitem__):
            break
    return total / steps


def apart(one: Tensor, other: Tensor) -> list[float]:
    """By layer: the mean distance of KV [layers, tokens, heads, components], as a share of the size of ``other``."""
    distance = (one - other).float().square().mean((1, 2, 3)).sqrt()
    return [float(each) for each in distance / other.float().square().mean((1, 2, 3)).sqrt()]
