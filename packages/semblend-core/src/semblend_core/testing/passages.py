"""Token sequences for tests."""

from __future__ import annotations

import random


def passage(seed: int, tokens: int) -> list[int]:
    """Reproducible token ids that share no run with the passage of another seed."""
    source = random.Random(seed)
    return [source.randrange(1000, 30000) for _ in range(tokens)]
