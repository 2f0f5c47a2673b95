"""The prompts of the benchmark, made alike in every process."""

from __future__ import annotations

import numpy as np

from semblend_core import TokenIds, as_token_ids

BLOCK = 16
VOCABULARY = 128_000
FRAME = 61


def donor(number: int, tokens: int) -> TokenIds:
    return as_token_ids(np.random.default_rng(number).integers(0, VOCABULARY, tokens))


def reframed(number: int, tokens: int, attempt: int) -> TokenIds:
    """The donor behind another instruction: no exact prefix, the same length."""
    frame = np.random.default_rng([attempt, number]).integers(0, VOCABULARY, FRAME)
    return as_token_ids(np.concatenate([frame, donor(number, tokens)[FRAME:]]))
