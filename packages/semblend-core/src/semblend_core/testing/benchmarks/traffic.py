"""Traffic as a service sees it: new prompts, repeated ones, conversations, reordered passages, edited documents."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend_core.testing.benchmarks.prompts import HEADER, INSTRUCTION, QUESTION, Prompts

SHARES = {"new": 0.30, "exact": 0.15, "conversation": 0.20, "reordered": 0.20, "edited": 0.15}
"""Of the requests, by kind."""
EDITED, EDITS = 20, 3
"""Tokens of an edit, and how many a document has at most."""
PASSAGES = (4, 10)
"""Fewest and most of a reordered prompt."""
LIBRARY = 24
"""Passages that reordered prompts are drawn from."""


@dataclass(frozen=True)
class Asked:
    kind: str
    prompt: npt.NDArray[np.int32]
    """All of it, or only what is new where it goes on from an earlier request."""
    output_tokens: int
    continues: int | None = None
    """The place of the request whose prompt and answer stand in front."""


def why_not(shortest: int, longest: int, output_tokens: int) -> str | None:
    """Why there is no such traffic, in words that name the option. ``output_tokens``: at the most."""
    if shortest + output_tokens > longest:
        return f"--longest {longest}: --shortest {shortest} and an answer of {output_tokens} tokens do not fit"
    return None


class MixedTraffic:
    """The same requests in the same order each time. A conversation goes on with whatever it was answered."""

    def __init__(
        self, prompts: Prompts, *, shortest: int, longest: int, output_tokens: tuple[int, int], seed: int
    ) -> None:
        self._prompts, self._random = prompts, random.Random(seed)
        self._shortest, self._longest, self._output = shortest, longest, output_tokens
        share = longest // PASSAGES[1]
        self._library = [self._array(self._random.randint(share // 2, share)) for _ in range(LIBRARY)]
        self._lengths: list[int] = []
        """What a request's prompt and answer come to."""
        self._last_turns: list[int] = []

    def requests(self, count: int) -> list[Asked]:
        asked: list[Asked] = []
        for place in range(count):
            one = self._next(asked)
            before = 0 if one.continues is None else self._lengths[one.continues]
            self._lengths.append(before + len(one.prompt) + one.output_tokens)
            if one.continues is not None:
                self._last_turns.remove(one.continues)
            if one.kind in ("new", "edited", "conversation"):
                self._last_turns.append(place)
            asked.append(one)
        return asked

    def _next(self, earlier: Sequence[Asked]) -> Asked:
        (kind,) = self._random.choices(list(SHARES), list(SHARES.values()))
        output = self._random.randint(*self._output)
        whole = [each for each in earlier[-200:] if each.continues is None]
        if kind == "exact" and whole:
            return Asked(kind, self._random.choice(whole).prompt, output)
        if kind == "edited" and whole:
            return Asked(kind, self._edited(self._random.choice(whole).prompt), output)
        if kind == "reordered":
            return Asked(kind, self._reordered(), output)
        question = self._array(QUESTION)
        fitting = [turn for turn in self._last_turns if self._lengths[turn] + QUESTION + output <= self._longest]
        if kind == "conversation" and fitting:
            return Asked(kind, question, output, self._random.choice(fitting))
        return Asked("new", self._array(self._length()), output)

    def _length(self) -> int:
        """Short prompts are common, long ones are not: all doublings are alike."""
        return round(
            math.exp(self._random.uniform(math.log(self._shortest), math.log(self._longest - self._output[1])))
        )

    def _reordered(self) -> npt.NDArray[np.int32]:
        chosen = self._random.sample(self._library, self._random.randint(*PASSAGES))
        parts = [self._array(INSTRUCTION)]
        for passage in chosen:
            parts += [self._array(HEADER), passage]
        # The answer must have room; a passage that is cut is as good.
        return np.concatenate([*parts, self._array(QUESTION)])[: self._longest - self._output[1]]

    def _edited(self, prompt: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        edited = prompt.copy()
        for _ in range(self._random.randint(1, EDITS)):
            at = self._random.randrange(max(1, len(edited) - EDITED))
            edited[at : at + EDITED] = self._array(EDITED)[: len(edited[at : at + EDITED])]
        return edited

    def _array(self, tokens: int) -> npt.NDArray[np.int32]:
        return np.array(self._prompts.fresh(tokens), np.int32)
