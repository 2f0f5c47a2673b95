"""A row's tokens, as vLLM's workers take those of a prompt.

A row goes on from everything in front of it, so its tokens stand behind a whole prompt's. Workers read what a step
computes, and of some models a few tokens in front of that. But vLLM writes all tokens of a new request into its batch,
for each row anew, and where they are a list it looks at each. With 60 rows of 6,000 tokens that took longer than most
forwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import wraps
from itertools import chain, repeat
from typing import Any, overload

import numpy as np
import numpy.typing as npt

UNREAD = 0
"""In the place of a token that nobody reads."""
IN_FRONT = 64
"""Tokens in front of a row that are told: models with n-gram embeddings look back at a few."""


class RowTokens(Sequence[int]):
    """As long as the prompt up to the row's end. Of what lies in front of ``start`` it says nothing."""

    __slots__ = ("own", "start")

    def __init__(self, start: int, own: list[int]) -> None:
        """``own``: the tokens from ``start`` on."""
        self.start, self.own = start, own

    @classmethod
    def of(cls, prompt: Sequence[int], start: int, end: int) -> RowTokens:
        """Of a row from ``start`` to ``end``. A token more than it computes, any: so it is an unfinished prefill."""
        first = max(0, start - IN_FRONT)
        return cls(first, [*prompt[first:end], prompt[0]])

    def __len__(self) -> int:
        return self.start + len(self.own)

    def __iter__(self) -> Iterator[int]:
        return chain(repeat(UNREAD, self.start), self.own)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        place = range(len(self))[at] - self.start
        return self.own[place] if place >= 0 else UNREAD

    def __add__(self, others: Sequence[int]) -> list[int]:
        """As lists do it: users' logits processors are handed the prompts of a batch."""
        return [*self, *others]

    def __radd__(self, others: Sequence[int]) -> list[int]:
        return [*others, *self]

    def copy(self) -> list[int]:
        return list(self)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """What numpy asks for where it is to be written into a batch."""
        tokens = np.full(len(self), UNREAD, dtype or np.int64)
        tokens[self.start :] = self.own
        return tokens


def write_own_tokens_only() -> None:
    """vLLM's second model runner gathers what it writes into its batch in a list, one token after the other.

    From now on it gathers a row's own tokens, and where they begin. Where it has no such list, all are written.
    """
    from vllm.v1.worker.gpu import buffer_utils

    staged = getattr(buffer_utils, "StagedWriteTensor", None)
    original = getattr(staged, "stage_write", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def stage_write(self: Any, index: int, start: int, x: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, RowTokens):
            start, x = start + x.start, x.own
        return original(self, index, start, x, *args, **kwargs)

    staged.stage_write = stage_write  # type: ignore[union-attr]
