"""Synthetic requests: passages of real text that donors had in another order, or behind other text."""

from __future__ import annotations

import pydoc_data.topics
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from semblend_core.contract import Plan, Span, TokenIds

PASSAGE_TOKENS = (96, 640)
FRONT_TOKENS = (8, 48)
QUESTION_TOKENS = (16, 48)
LEAST_TOKENS = 2 * PASSAGE_TOKENS[0] + FRONT_TOKENS[1] + QUESTION_TOKENS[1]
DONORS_AT_ONCE = 4
"""Donors whose KV is held at a time, and from which recipients are made."""
TEXT = (".txt", ".md", ".rst", ".py", ".json", ".jsonl", ".html")


@dataclass(frozen=True, slots=True)
class Request:
    tokens: TokenIds
    plan: Plan


@dataclass(frozen=True, slots=True)
class Round:
    """Donors, and the recipients that share passages with them."""

    donors: dict[str, TokenIds]
    requests: list[Request]


@dataclass(frozen=True, slots=True)
class _Passage:
    donor: str
    start: int
    tokens: TokenIds


def read_text(places: Sequence[Path]) -> list[str]:
    """Documents of files and folders; without any, the language reference that Python brings along."""
    if not places:
        return [str(text) for text in pydoc_data.topics.topics.values()]
    files = [
        file
        for place in places
        for file in (sorted(place.rglob("*")) if place.is_dir() else [place])
        if file.is_file() and (file == place or file.suffix in TEXT)
    ]
    return [file.read_text(errors="replace") for file in files]


class RequestMaker:
    """Endless rounds of requests of at most ``tokens`` tokens. The same text, size and seed make the same ones."""

    def __init__(self, documents: Sequence[TokenIds], tokens: int, seed: int = 0) -> None:
        # Short documents have no passages, and joined they are as good as a long one.
        self._text = np.concatenate(documents) if documents else np.zeros(0, np.int32)
        least = PASSAGE_TOKENS[1] * 8
        if self._text.size < least:
            raise ValueError(f"the text has {self._text.size} tokens, at least {least} are needed: give more --text")
        if tokens < LEAST_TOKENS:
            raise ValueError(f"requests have at least {LEAST_TOKENS} tokens, got {tokens}")
        self._tokens, self._random = tokens, random.Random(seed)

    def rounds(self) -> Iterator[Round]:
        while True:
            yield self._round()

    def _round(self) -> Round:
        shortest, longest = PASSAGE_TOKENS
        room = self._tokens - FRONT_TOKENS[1] - QUESTION_TOKENS[1]
        length = self._random.randint(shortest, max(shortest, min(longest, room // 3)))
        count = self._random.randint(2, max(2, room // length))
        donors: dict[str, TokenIds] = {}
        passages: dict[str, list[_Passage]] = {}
        for number in range(DONORS_AT_ONCE):
            name = f"donor-{number}"
            parts = [self._slice(*FRONT_TOKENS), *(self._slice(length * 3 // 4, length) for _ in range(count))]
            ends = accumulate(part.size for part in parts)
            passages[name] = [_Passage(name, start, part) for start, part in zip(ends, parts[1:], strict=False)]
            donors[name] = np.concatenate(parts)
        reordered = [self._request(self._shuffled(held)) for held in passages.values()]
        return Round(donors, [*reordered, *(self._request(self._mixed(passages)) for _ in passages)])

    def _shuffled(self, held: list[_Passage]) -> list[_Passage]:
        order = held.copy()
        while len(held) > 1 and order == held:
            self._random.shuffle(order)
        return order

    def _mixed(self, passages: dict[str, list[_Passage]]) -> list[_Passage]:
        """As many as one donor has, each time from another donor than the one before."""
        names = list(passages)
        self._random.shuffle(names)
        count = len(passages[names[0]])
        return [self._random.choice(passages[names[at % len(names)]]) for at in range(count)]

    def _request(self, passages: list[_Passage]) -> Request:
        parts, spans = [self._slice(*FRONT_TOKENS)], []
        for passage in passages:
            at = sum(part.size for part in parts)
            spans.append(Span(at, passage.donor, passage.start, passage.tokens.size))
            parts.append(passage.tokens)
        parts.append(self._slice(*QUESTION_TOKENS))
        tokens = np.concatenate(parts)
        return Request(tokens, Plan.over("fit", tokens.size, 0, spans))

    def _slice(self, shortest: int, longest: int) -> TokenIds:
        length = self._random.randint(shortest, longest)
        start = self._random.randrange(self._text.size - length)
        return self._text[start : start + length]
