"""How far another prefill of a prompt strays from the cold one, over one fixed text behind it."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semblend_core import TokenIds, as_token_ids
from semblend_core.reference import Prefill, ReferenceEngine

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Divergence:
    """Against cold, position by position of the cold model's own greedy text."""

    kl_mean: float
    """KL(cold || this) in nats."""
    kl_max: float
    ppl_ratio: float
    top1: float
    """Share of positions with the same most likely token."""


@dataclass(frozen=True)
class GreedyText:
    tokens: list[int]
    """The answer: all before the first token that ends it."""
    beyond: list[int]
    """The answer and what the model says after it, where more was asked for."""
    seconds: float
    """Until the answer was complete, behind the first token."""


class ColdTruth:
    """The cold model's text behind a prompt, and what it thought at each of its tokens."""

    def __init__(self, engine: ReferenceEngine, cold: Prefill, continuation: TokenIds) -> None:
        self._engine = engine
        self._continuation = continuation
        self._log_probs: Tensor = engine.score(cold, continuation).log_softmax(-1)

    def compare(self, prefill: Prefill) -> Divergence:
        truth, found = self._log_probs, self._engine.score(prefill, self._continuation).log_softmax(-1)
        # Rounding can leave a sum of the size of a float's last digit below zero, which no KL is.
        kl = (truth.exp() * (truth - found)).sum(-1).clamp(min=0)
        places = (np.arange(self._continuation.size), self._continuation.astype(np.int64))
        excess = (truth[places] - found[places]).mean()
        return Divergence(
            kl_mean=float(kl.mean()),
            kl_max=float(kl.max()),
            ppl_ratio=float(excess.exp()),
            top1=float((truth.argmax(-1) == found.argmax(-1)).float().mean()),
        )


def generate_greedily(engine: ReferenceEngine, prefill: Prefill, answer_tokens: int, at_least: int = 0) -> GreedyText:
    """The answer, ``answer_tokens`` long at most; text goes on past its end where ``at_least`` asks for more."""
    started = time.perf_counter()
    start = prefill.token_ids.size
    workspace = prefill.workspace
    workspace.truncate(start)
    workspace.reserve(start + max(answer_tokens, at_least))
    stops: Collection[int] = engine.end_of_text
    said: list[int] = []
    answer, seconds = None, 0.0
    logits: Tensor | None = prefill.logits
    while logits is not None:
        token = int(logits.argmax())
        if answer is None and token in stops:
            answer, seconds = list(said), time.perf_counter() - started
        if answer is None or len(said) < at_least:
            said.append(token)
        if answer is None and len(said) == answer_tokens:
            answer, seconds = list(said), time.perf_counter() - started
        if answer is not None and len(said) >= at_least:
            break
        logits = engine.compute(workspace, [token], [start + len(said) - 1])
    workspace.truncate(start)
    return GreedyText(answer or [], said, seconds)


def prefill_in_two(engine: ReferenceEngine, tokens: TokenIds, room: int) -> Prefill:
    """Cold once more, in two chunks, so that sums are taken in another order: the protocol's own noise."""
    half = tokens.size // 2
    first = engine.prefill(tokens[:half], room=tokens.size - half + room)
    logits = engine.compute(first.workspace, tokens[half:], np.arange(half, tokens.size))
    assert logits is not None
    return Prefill(as_token_ids(tokens), first.workspace, logits, 0.0, tokens.size, reused_tokens=0)
