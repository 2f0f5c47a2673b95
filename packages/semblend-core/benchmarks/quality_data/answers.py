"""Agreement of two texts, word by word."""

from __future__ import annotations

import re
from collections import Counter


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


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
