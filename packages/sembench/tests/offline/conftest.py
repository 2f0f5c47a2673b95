"""A tokenizer whose tokens can be counted by eye, and items made of its letters."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import pytest

from sembench.schema import DonorPrompt, ManifestItem
from sembench.tokenization import Tokenizer

MakeItem = Callable[..., ManifestItem]


class Letters(Tokenizer):
    """One token per character, its code point."""

    name = "letters"
    digest = "0" * 16

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def hex_id(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@pytest.fixture
def letters() -> Tokenizer:
    return Letters()


@pytest.fixture
def make_item() -> MakeItem:
    def make(name: str, donors: Sequence[str], recipient: str, transform: str = "rag_reorder") -> ManifestItem:
        return ManifestItem(
            item_id=hex_id("item", name),
            dataset="test",
            source_id=name,
            transform=transform,
            donor_prompts=tuple(
                DonorPrompt(donor_id=hex_id("donor", name, place), text=text, label="donor")
                for place, text in enumerate(donors)
            ),
            recipient_prompt=recipient,
            input="",
            answers=(),
            negative_control=transform == "negative_control",
        )

    return make


@pytest.fixture
def distinct() -> Callable[[int, int], str]:
    """``distinct(start, length)``: letters that occur nowhere else than in an overlapping range."""
    return lambda start, length: "".join(chr(0x4E00 + start + place) for place in range(length))
