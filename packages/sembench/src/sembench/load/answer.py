"""One request's answer as it comes in: when it was due, sent, when each token came, and how it ended."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

from sembench.openai_events import EventCutter, find_error, read_usage, text_and_thought, why_broken_off

_QUOTED = 200


@dataclass
class Answer:
    """Times are of the monotonic clock, in seconds. ``error`` is None for an answer that ended as it should."""

    due: float
    sent: float | None = None
    """Just before the request's first byte was written; None where that never came to be."""
    token_at: array[float] = field(default_factory=lambda: array("d"))
    """When each event with text arrived."""
    ended: float | None = None
    error: str | None = None
    """The kind: connect, timeout, http_503, disconnected, malformed, error_event, unfinished."""
    detail: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    first_event: bytes = b""
    """The first event with text, as it came."""
    reuse: bool = False

    def fail(self, kind: str, detail: str, at: float) -> None:
        """The first failure is the one that counts."""
        if self.error is None:
            self.error, self.detail, self.ended = kind, " ".join(detail.split())[:_QUOTED], at


class AnswerReader:
    """Takes the pieces of a response's body, and notes in the answer what they say."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._cutter = EventCutter()
        self._finished = False
        self._refusal = b""

    def take(self, status: int, piece: bytes, now: float) -> None:
        if status != 200:
            self._refusal = (self._refusal + piece)[:_QUOTED]
            return
        for data in self._cutter.feed(piece):
            self._event(data, now)

    def end(self, status: int, now: float) -> None:
        """The response is complete."""
        if status != 200:
            self.answer.fail(f"http_{status}", self._refusal.decode("utf-8", "replace"), now)
        elif not self._finished:
            self.answer.fail("disconnected", "the stream ended before the answer did", now)

    def _event(self, data: bytes, now: float) -> None:
        answer = self.answer
        if answer.error is not None:
            return
        if data == b"[DONE]":
            self._finished, answer.ended = True, now
            return
        try:
            event = json.loads(data)
            has_text, reason = False, None
            choices = event.get("choices")
            for choice in choices or ():
                has_text |= any(text_and_thought(choice))
                reason = reason or choice.get("finish_reason")
        except (ValueError, AttributeError, TypeError, RecursionError):
            answer.fail("malformed", f"an event is not what OpenAI's API sends: {data[:80]!r}", now)
            return
        if has_text:
            if not answer.token_at:
                answer.first_event = data
            answer.token_at.append(now)
        if has_text or reason:
            self._finished |= bool(reason)
            answer.ended = now
        if reason and (why := why_broken_off(reason)):
            answer.fail("error_event", why, now)
        elif not choices or "error" in event or "usage" in event:
            self._besides(event, now)

    def _besides(self, event: dict[str, Any], now: float) -> None:
        error = find_error(event)
        if error:
            self.answer.fail("error_event", error.message, now)
        elif event.get("usage") and isinstance(event["usage"], dict):
            usage = read_usage(event["usage"])
            self.answer.prompt_tokens, self.answer.output_tokens, self.answer.cached_tokens = usage
