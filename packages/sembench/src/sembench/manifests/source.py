"""A source: one document, what can be asked of it, and the same document about other people and things."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fact:
    """Something that can be asked of a document. The answers are those accepted; none where no answer is known."""

    question: str
    paraphrase: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class SourceDocument:
    """What items are made of."""

    dataset: str
    domain: str
    """What it is about. A negative control takes its donor from another one."""
    source_id: str
    noun: str
    """What a reader calls such a document."""
    document: str
    facts: tuple[Fact, ...]
    """The first is the scored question; the others are asked of donors and in earlier turns."""
    swapped: Swapped | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Swapped:
    """The document with every name and figure exchanged, and the answers that it would give: wrong for the source."""

    document: str
    facts: tuple[Fact, ...]
