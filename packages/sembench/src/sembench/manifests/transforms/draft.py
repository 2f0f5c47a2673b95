"""What a transform makes of a source, before it has ids and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sembench.manifests.draws import Draws
from sembench.manifests.prompts import Prompt, summary_task
from sembench.manifests.source import Fact, SourceDocument
from sembench.manifests.text_units import split_segments


class NotPossible(Exception):  # noqa: N818 - no fault, a fact about a source
    """This source cannot be transformed in this way; the message says why."""


@dataclass(frozen=True)
class DonorDraft:
    prompt: Prompt
    label: str
    source: SourceDocument
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    donors: list[DonorDraft]
    recipient: Prompt
    question: str
    """As it is asked in the recipient."""
    answers: tuple[str, ...]
    negative_control: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What a transform may use besides the source."""

    draws: Draws
    max_segments: int
    min_segment_chars: int
    stranger: Callable[[SourceDocument], SourceDocument]
    """A source of another domain."""
    claims: Callable[[SourceDocument, str], bool]
    """Whether an edited document still shares no block with another source; only generated ones are kept apart."""

    def segments(self, source: SourceDocument, at_least: int) -> list[str]:
        found = split_segments(source.document, self.max_segments, self.min_segment_chars)
        if len(found) < at_least:
            raise NotPossible(
                f"needs {at_least} segments, has {len(found)} "
                f"(--max-segments {self.max_segments}, --min-segment-chars {self.min_segment_chars})"
            )
        return found


def donor_task(source: SourceDocument) -> str:
    """What a donor was asked where the recipient's task must be new."""
    return source.facts[1].question if len(source.facts) > 1 else summary_task(source)


def fact_within(source: SourceDocument, segment: str) -> Fact | None:
    """A fact beside the scored one that this segment states."""
    return next((fact for fact in source.facts[1:] if fact.answers and fact.answers[0] in segment), None)
