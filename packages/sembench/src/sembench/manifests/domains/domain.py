"""The parts of a domain. Words in braces are rules of the domain, or slots for names and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FactForm:
    """A sentence that states a fact, two ways to ask for it, and the answer. Tagged slots hold them together."""

    sentence: str
    question: str
    paraphrase: str
    answer: str


@dataclass(frozen=True)
class Domain:
    name: str
    noun: str
    """What a reader would call one document."""
    title: str
    headings: tuple[str, ...]
    """One of them starts each part."""
    sentences: tuple[str, ...]
    facts: tuple[FactForm, ...]
    rules: Mapping[str, tuple[str, ...]]
    part_length: tuple[int, int]
    """Fewest and most sentences of a part."""
    part_joint: str
    """What stands before a heading."""
    first_joint: str
    joint: str
    """What stands before the first sentence of a part, and between two; ``{line}`` numbers them all."""
