"""Streamed answers of OpenAI's API, for replay and load alike: events cut out of bytes, and what an event says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

_NO_ENDINGS = ("abort", "error", "cancel", "timeout")
"""What a reason to finish begins with where the answer was broken off: vLLM's, SGLang's, TensorRT-LLM's, Dynamo's."""
_MOST_TOKENS = 100_000_000
"""Ten times the longest context that any model has."""


class EventCutter:
    """Cuts a response's body into the data of its server-sent events, however the bytes were cut on the way.

    Lines are split at line feeds only: JSON may hold the other characters that Unicode calls line ends. The data of an
    ``event: error`` comes as the object of an error.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._tells_error = False

    def feed(self, piece: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found = []
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                found.append(_as_error(data) if self._tells_error else data)
            elif line.startswith(b"event:"):
                self._tells_error = line[6:].strip() == b"error"
            elif not line.strip():
                self._tells_error = False
        return found


def _as_error(data: bytes) -> bytes:
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        told = data.decode("utf-8", "replace")
    if isinstance(told, dict) and told.get("error"):
        return data
    return json.dumps({"error": told or "no message"}).encode()


class ToldError(NamedTuple):
    """An error that the server put into its stream. ``status`` is as in HTTP."""

    status: int
    message: str


def find_error(event: Mapping[str, Any]) -> ToldError | None:
    """OpenAI's ``error``, vLLM's older ``object: error``, FastChat's ``error_code`` and FastAPI's ``detail``."""
    told: Any = event.get("error")
    if not told and (event.get("object") == "error" or event.get("error_code")):
        told = {"message": event.get("message") or event.get("text"), "code": event.get("code")}
    elif not told and "choices" not in event:
        told = event.get("detail")
    if not told:
        return None
    detail = told if isinstance(told, dict) else {"message": told}
    code, message = detail.get("code"), detail.get("message") or told
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return ToldError(status, message if isinstance(message, str) else json.dumps(message))


def why_broken_off(finish_reason: object) -> str | None:
    """What a reason to finish says where the server gave the answer up; None for an answer that ended as it should."""
    told = finish_reason if isinstance(finish_reason, dict) else {"type": finish_reason}
    kind = told.get("type")
    if not isinstance(kind, str) or not kind.lower().startswith(_NO_ENDINGS):
        return None
    said = told.get("message")
    return f"the server broke the answer off: finish_reason {kind}" + (f": {said}" if said else "")


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


def mend_text(text: str) -> str:
    """As UTF-8 can hold it. JSON may escape a character as two halves, and a server may cut between them: halves that
    meet are joined, and one that is alone is replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def mend_texts(value: Any, depth: int = 100) -> Any:
    """The same for all texts of a JSON document. RecursionError: no result could hold what is nested that deeply."""
    if not depth:
        raise RecursionError("nested too deeply")
    match value:
        case str():
            return mend_text(value)
        case list():
            return [mend_texts(each, depth - 1) for each in value]
        case dict():
            return {mend_text(name): mend_texts(each, depth - 1) for name, each in value.items()}
    return value


def count_or_none(value: object) -> int | None:
    """A token count as a server states it; anything else is not a statement, nor is what no prompt can have."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS else None
