"""Prompts of the shapes that reuse is for. No two share anything but what is meant."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from semblend_core.testing.benchmarks.checked import text_to_read

INSTRUCTION, QUESTION, HEADER = 61, 64, 16
"""Tokens in front of a document, behind it, and in front of each of several passages."""
LEAST_TOKENS = 256
"""Of a prompt of up to ten passages: each has a header, and a question stands behind them."""
DONOR_INSTRUCTION = 48
SNIPPET = 8
"""Tokens of real text that are taken together: far fewer than the shortest span."""
MOST_DRAWS = 20
"""Of an opening, until its first token is a new one."""


@dataclass(frozen=True)
class Material:
    donors: list[list[int]]
    recipient: Callable[[], list[int]]
    """Another prompt over the same documents with each call."""


class Prompts:
    """Of random ids, or of ``text``: short snippets of it, so that it does not run out."""

    def __init__(self, vocabulary: int, text: Sequence[int] = (), seed: int = 7) -> None:
        self._random, self._vocabulary, self._text = random.Random(seed), vocabulary, list(text)
        self._begun_with: set[int] = set()
        if text and len(text) < 100 * SNIPPET:
            raise ValueError(f"{len(text)} tokens of --text are too few, {100 * SNIPPET} are needed")

    @classmethod
    def for_model(cls, folder: Path, texts: Sequence[Path] = (), seed: int = 7) -> Prompts:
        """``texts``: real text, where what the model makes of it matters; files and folders of pages."""
        vocabulary = int(json.loads((folder / "config.json").read_text())["vocab_size"])
        return cls(vocabulary, tokens_of(folder, texts), seed)

    def fresh(self, tokens: int) -> list[int]:
        """What no earlier prompt holds."""
        if not self._text:
            return [self._random.randrange(min(1000, self._vocabulary // 2), self._vocabulary) for _ in range(tokens)]
        drawn: list[int] = []
        while len(drawn) < tokens:
            start = self._random.randrange(len(self._text) - SNIPPET)
            drawn += self._text[start : start + SNIPPET]
        return drawn[:tokens]

    def opening(self, tokens: int) -> list[int]:
        """What a prompt begins with. Not even its first token is that of an earlier prompt.

        An exact cache of single tokens would find it. It would in the larger of two caches more often, and a prefill
        behind one token takes longer than one from the beginning.
        """
        drawn = self.fresh(tokens)
        for _ in range(MOST_DRAWS):
            if drawn[0] not in self._begun_with:
                break
            drawn = self.fresh(tokens)
        else:
            unused = [token for token in range(self._vocabulary) if token not in self._begun_with]
            drawn[0] = self._random.choice(unused or drawn)
        self._begun_with.add(drawn[0])
        return drawn

    def page(self, tokens: int) -> list[int]:
        """Text as it was written, from a place of its own; it wraps around. Two pages may overlap."""
        if not self._text:
            return self.fresh(tokens)
        start = self._random.randrange(len(self._text))
        return [self._text[(start + n) % len(self._text)] for n in range(tokens)]

    def new_instruction(self, size: int) -> Material:
        """One document behind another instruction, and before another question."""
        document = self.fresh(size - INSTRUCTION - QUESTION)
        return Material([self._donor(document)], lambda: self._behind_instruction(document))

    def same_place(self, size: int) -> Material:
        """Nothing moves: the instruction is as long as the donor's."""
        document = self.fresh(size - INSTRUCTION - QUESTION)
        return Material([self._behind_instruction(document)], lambda: self._behind_instruction(document))

    def reorder(self, size: int, passages: int = 4) -> Material:
        """The passages of one earlier prompt in another order, each with a header of its own."""
        parts = self._passages(size, passages)
        return Material([self._donor([t for part in parts for t in part])], lambda: self._composed(parts))

    def composite(self, size: int, passages: int = 4) -> Material:
        """Passages of as many earlier prompts."""
        parts = self._passages(size, passages)
        return Material([self._donor(part) for part in parts], lambda: self._composed(parts))

    def _passages(self, size: int, passages: int) -> list[list[int]]:
        return [self.fresh((size - QUESTION) // passages - HEADER) for _ in range(passages)]

    def _donor(self, document: list[int]) -> list[int]:
        return self.opening(DONOR_INSTRUCTION) + document + self.fresh(QUESTION)

    def _behind_instruction(self, document: list[int]) -> list[int]:
        return self.opening(INSTRUCTION) + document + self.fresh(QUESTION)

    def _composed(self, passages: list[list[int]]) -> list[int]:
        first, *others = self._new_order(len(passages))
        behind = [t for number in others for t in self.fresh(HEADER) + passages[number]]
        return self.opening(HEADER) + passages[first] + behind + self.fresh(QUESTION)

    def _new_order(self, passages: int) -> list[int]:
        """In which no passage follows the one that it followed before."""
        order = list(range(passages))
        while any(after == before + 1 for before, after in pairwise(order)):
            self._random.shuffle(order)
        return order


def tokens_of(folder: Path, texts: Sequence[Path]) -> list[int]:
    if not texts:
        return []
    from transformers import AutoTokenizer

    files = [file for text in texts for file in (sorted(text.rglob("*.md")) if text.is_dir() else [text])]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens: list[int] = tokenizer.encode("\n\n".join(file.read_text() for file in files), add_special_tokens=False)
    return tokens


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text", type=text_to_read, nargs="+", default=[], help="prompts of real text: files, folders of .md"
    )
    parser.add_argument("--seed", type=int, default=7)
