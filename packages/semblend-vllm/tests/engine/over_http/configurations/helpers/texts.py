"""Prompts, of which parts return elsewhere."""

from __future__ import annotations

NAMES = ("Albatross", "Bonaventure", "Calypso", "Dolphin")
PASSAGES = [
    f"Chapter {name}. "
    + " ".join(f"On day {n} the {name} made {n * 7 % 50 + 3} knots and {n * 13 % 90 + 5} miles." for n in range(1, 13))
    for name in NAMES
]


def document(kind: str) -> str:
    return " ".join(f"{kind} {n} weighs {n * 29 % 83 + 3} pounds, cost {n * 13 % 47 + 2} crowns." for n in range(30))


def donor(kind: str) -> str:
    return f"A list.\n\n{document(kind)}\n\nQuestion: which is the lightest?\nAnswer:"


def recipient(kind: str) -> str:
    return f"System: answer in a few words, from the list below.\n\n{document(kind)}\n\nQuestion: what?\nAnswer:"


def logs() -> list[str]:
    return [f"Log {number}:\n{passage}\n\nTitle:" for number, passage in enumerate(PASSAGES)]


def recipients() -> dict[str, str]:
    """Prompts that find ``donor("Barrel")`` and all ``logs``."""
    return {"one document": recipient("Barrel"), "four documents": four_logs()}


def four_logs(opening: str = "Four logs.") -> str:
    question = "Question: how many miles did the Calypso make on day 7?\nAnswer:"
    return "\n\n".join([opening, *PASSAGES, question])
