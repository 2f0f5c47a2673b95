"""A row's tokens, as vLLM's workers take those of a prompt.

A row goes on from everything in front of it, so its tokens stand behind a whole prompt's. Workers read no others: they
are what a step computes. But vLLM writes all tokens of a new request into its batch, for each row anew, and where they
are a list it looks at each. With 60 rows of 6,000 tokens that took longer than most forwards.
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


class RowTokens(Sequence[int]):
    """As long as the prompt up to the row's end. Of what lies in front of ``start`` it says nothing."""

    __slots__ = ("own", "start")

    def __init__(self, start: int, own: list[int]) -> None:
        self.start, self.own = start, own

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
