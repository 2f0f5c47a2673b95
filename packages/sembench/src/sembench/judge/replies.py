"""Reading the judge's replies. What is not clearly one of the allowed answers is no answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Literal, TypeVar

Vote = Literal["A", "B", "tie"]
Value = TypeVar("Value")

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_OBJECT = re.compile(r"\{[^{}]*\}")


def score_in(reply: str) -> int | None:
    """A whole number from 1 to 5, else None."""
    return _only(reply, "score", _as_score)


def vote_in(reply: str) -> Vote | None:
    return _only(reply, "better", _as_vote)


def _only(reply: str, key: str, read: Callable[[object], Value | None]) -> Value | None:
    """The value that the objects with this key agree on. An unfinished thought or two answers are none."""
    text = _THOUGHT.sub("", reply)
    if "<think>" in text.lower():
        return None
    found: list[Value | None] = []
    for match in _OBJECT.findall(text):
        try:
            told = json.loads(match)
        except ValueError:
            continue
        if key in told:
            found.append(read(told[key]))
    return found[0] if found and all(value == found[0] for value in found) else None


def _as_score(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in (1, 2, 3, 4, 5):
        return None
    return int(value)


def _as_vote(value: object) -> Vote | None:
    votes: dict[object, Vote] = {"A": "A", "B": "B", "a": "A", "b": "B", "tie": "tie", "Tie": "tie", "TIE": "tie"}
    return votes.get(value) if isinstance(value, str) else None
