"""The shape of an engine's step: what its time depends on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Kind: TypeAlias = tuple[int, ...]
"""Steps of about the same size and make."""

FLAT_TOKENS = 512
"""Up to about here a GPU reads its weights for longer than it computes, and engines replay captured graphs."""

FEATURES = (
    "step",
    "prompt",
    "token",
    "token_beyond_flat",
    "beyond_flat",
    "attention",
    "context",
    "sequence",
    "reuse",
    "moved",
    "correction",
    "corrected",
)
"""What a step's time is a sum over, each with a cost of its own. Their order is that of ``StepShape.vector``."""


class Part(NamedTuple):
    """What one sequence of a step computes."""

    before: int
    """Tokens in front, whose KV is read."""
    tokens: int
    request_id: str = ""
    is_row: bool = False
    decodes: bool = False
    """It computes the next token of an answer, and nothing of a prompt."""

    @property
    def end(self) -> int:
        return self.before + self.tokens


@dataclass(frozen=True)
class StepShape:
    """What a step computes and moves. A judgement asks each shape for its vector and kind again and again."""

    tokens: int = 0
    """Computed, all sequences together."""
    attention: float = 0.0
    """Pairs of a computed token and one that it attends to."""
    context: int = 0
    """Tokens in front of the computed ones, whose KV is read: summed over all sequences."""
    sequences: int = 0
    """Sequences that compute a part of a prompt; every row is one. A step without any only decodes."""
    reuses: bool = False
    """Something is loaded in this step, or rows are computed."""
    moved: int = 0
    """Tokens whose KV is loaded."""
    corrected: int = 0
    """Tokens of spans that are corrected inside the forward."""
    decoding: int = 0
    """Of ``tokens``: the next ones of answers."""
    decoding_context: int = 0
    """Of ``context``: in front of those."""

    @classmethod
    def of(cls, parts: Iterable[Part], *, moved: int = 0, corrected: int = 0) -> StepShape:
        tokens = context = sequences = rows = decoding = decoding_context = 0
        attention = 0.0
        for before, computed, _, is_row, decodes in parts:
            tokens += computed
            context += before
            attention += computed * (before + computed / 2)
            if decodes:
                decoding += computed
                decoding_context += before
            else:
                sequences += 1
                rows += is_row
        reuses = bool(moved or rows)
        return cls(tokens, attention, context, sequences, reuses, moved, corrected, decoding, decoding_context)

    @classmethod
    def of_rows(cls, starts: Integers, lengths: Integers, *, moved: int = 0, corrected: int = 0) -> StepShape:
        """``of`` rows, of which there may be a thousand."""
        tokens, context = int(lengths.sum()), int(starts.sum())
        attention = float(np.dot(lengths, starts + lengths / 2))
        return cls(tokens, attention, context, starts.size, bool(moved or starts.size), moved, corrected)

    def __add__(self, other: StepShape) -> StepShape:
        """Both in one step."""
        return StepShape(
            self.tokens + other.tokens,
            self.attention + other.attention,
            self.context + other.context,
            self.sequences + other.sequences,
            self.reuses or other.reuses,
            self.moved + other.moved,
            self.corrected + other.corrected,
            self.decoding + other.decoding,
            self.decoding_context + other.decoding_context,
        )

    @cached_property
    def without_reuse(self) -> StepShape:
        """The same tokens as one sequence, nothing moved."""
        return replace(self, sequences=min(1, self.sequences), reuses=False, moved=0, corrected=0)

    @cached_property
    def vector(self) -> Vector:
        beyond = max(0, self.tokens - FLAT_TOKENS)
        vector = np.array(
            (
                1.0,
                self.sequences > 0,
                self.tokens,
                beyond,
                beyond > 0,
                self.attention,
                self.context,
                self.sequences,
                self.reuses,
                self.moved,
                self.corrected > 0,
                self.corrected,
            ),
            np.float64,
        )
        vector.setflags(write=False)
        return vector

    @cached_property
    def kind(self) -> Kind:
        """Steps of about the same size and make, by powers of two. Beside a prompt, answers make no other kind of it:
        nobody who forecasts a plan's steps knows of them.
        """
        tokens, context = self.tokens, self.context
        if self.sequences:
            tokens, context = tokens - self.decoding, context - self.decoding_context
        return (
            tokens.bit_length(),
            self.sequences.bit_length(),
            context.bit_length(),
            self.moved.bit_length(),
            self.corrected.bit_length(),
        )
