"""How useful an answer is, and how far two texts agree, word by word."""

from __future__ import annotations

import re
from collections import Counter

from quality_data.facts import NOT_STATED

ABSENT = (
    NOT_STATED,
    *("not mentioned", "not specified", "not provided", "not given", "not say", "not state", "not mention"),
    *("no information", "not contain", "not specify", "not provide", "no mention", "unknown"),
)


def usefulness(judge: str, text: str, answer: str, outdated: str = "", rule: str = "") -> float:
    """0 to 1, by the judge that a case names. ``rule``: what the answer follows from; to quote it is no answer."""
    if judge == "quote":
        return float(_holds(text, answer))
    if judge == "fact":
        said = _without(text, rule)
        return float(_holds(said, answer) and not _holds(said, outdated))
    if judge == "absent":
        return float(any(_holds(text, phrase) for phrase in ABSENT) and not _holds(text, outdated))
    return token_f1(text, answer) if len(answer.split()) <= 8 else rouge_l(text, answer)


def token_f1(text: str, answer: str) -> float:
    """F1 of the words of a short answer; ``text`` is cut behind its first line, where small models wander off."""
    found, wanted = _words(text.strip().split("\n")[0]), _words(answer)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if found and wanted else 0.0


def rouge_l(text: str, answer: str) -> float:
    """F1 of the longest common subsequence of words."""
    found, wanted = _words(text), _words(answer)
    if not found or not wanted:
        return 0.0
    row = [0] * (len(wanted) + 1)
    for word in found:
        diagonal = 0
        for column, other in enumerate(wanted, 1):
            diagonal, row[column] = row[column], diagonal + 1 if word == other else max(row[column], row[column - 1])
    return 2 * row[-1] / (len(found) + len(wanted))


def _without(text: str, rule: str) -> str:
    """``text`` without whole sentences of ``rule``, which names both outcomes."""
    quoted = [_words(sentence) for sentence in _sentences(rule)]
    return " ".join(sentence for sentence in _sentences(text) if _words(sentence) not in quoted)


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text)


def _holds(text: str, part: str) -> bool:
    """Whether the words of ``part`` stand in ``text``, in a row."""
    found, wanted = f" {' '.join(_words(text))} ", f" {' '.join(_words(part))} "
    return bool(part) and wanted in found


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
