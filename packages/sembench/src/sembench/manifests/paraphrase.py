"""The same question in other words, by rule: for questions that come without a second wording."""

from __future__ import annotations

import re

_RULES = (
    (
        re.compile(r"^(?:what|which) (is|are|was|were) (.+)\?$", re.IGNORECASE | re.DOTALL),
        r"Can you tell me what \2 \1?",
    ),
    (re.compile(r"^who (.+)\?$", re.IGNORECASE | re.DOTALL), r"Name the person or people who \1."),
    (re.compile(r"^when (.+)\?$", re.IGNORECASE | re.DOTALL), r"Give the time at which this holds: when \1?"),
    (re.compile(r"^where (.+)\?$", re.IGNORECASE | re.DOTALL), r"Name the place: where \1?"),
    (re.compile(r"^how (many|much) (.+)\?$", re.IGNORECASE | re.DOTALL), r"State how \1 \2."),
    (re.compile(r"^(?:please )?summari[sz]e (.+?)\.?$", re.IGNORECASE | re.DOTALL), r"Give a summary of \1."),
    (re.compile(r"^write (.+)$", re.IGNORECASE | re.DOTALL), r"Your job is to write \1"),
)


def paraphrased(question: str) -> str:
    """A long subject would read badly turned round, so beyond a dozen words the question is only introduced anew."""
    text = question.strip()
    if len(text.split()) <= 12:
        for pattern, replacement in _RULES:
            turned, changed = pattern.subn(replacement, text)
            if changed:
                return turned
    return f"In other words, this is what I need to know: {text}"
