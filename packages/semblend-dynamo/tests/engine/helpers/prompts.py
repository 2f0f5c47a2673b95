"""Prompts whose documents come back in other frames."""

from __future__ import annotations

import random

WORDS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet")


def documents(count: int, *, seed: int, words: int = 120) -> list[str]:
    """About 900 tokens each; no two share a run of 64 but by chance."""
    dice = random.Random(seed)
    return [" ".join(f"{dice.choice(WORDS)}{dice.randint(0, 999)}" for _ in range(words)) for _ in range(count)]


def first_frame(number: int, document: str) -> str:
    return f"[{number}] Summarise this text.\n{document}"


def other_frame(number: int, document: str) -> str:
    """Nothing of the first frame's opening: the exact prefix is the chat template's few tokens, less than a block."""
    return f"{number * 7 + 3}: a question on what follows, to be answered briefly.\n\n{document}\nWhat is it about?"
