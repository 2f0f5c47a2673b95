"""Streamed answers of OpenAI's API, for replay and load alike: events cut out of bytes, and what an event says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class EventCutter:
    """Cuts a response's body into the data of its server-sent events, however the bytes were cut on the way.

    Lines are split at line feeds only: JSON may hold the other characters that Unicode calls line ends.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class TokenUsage(NamedTuple):
    """Token counts as the server states them; None is what it did not state."""

    prompt: int | None = None
    output: int | None = None
    cached: int | None = None


def read_usage(usage: Mapping[str, Any]) -> TokenUsage:
    details = usage.get("prompt_tokens_details")
    cached = count_or_none(details.get("cached_tokens")) if isinstance(details, dict) else None
    return TokenUsage(count_or_none(usage.get("prompt_tokens")), count_or_none(usage.get("completion_tokens")), cached)


def text_and_thought(choice: Mapping[str, Any]) -> tuple[Any, Any]:
    """What a choice adds to the answer, and to the model's thinking aloud: with either the answer has begun."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or "", ""
    return delta.get("content") or "", delta.get("reasoning_content") or delta.get("reasoning") or ""


def count_or_none(value: object) -> int | None:
    """A token count as a server states it; anything else is not a statement."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
