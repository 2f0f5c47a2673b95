"""Variations of a document, as a recipient and its true donors meet them, with the oracle of what could be reused."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Encode = Callable[[str], list[int]]
ORACLE_GRAM = 16

FIRST_HEADER = "You are a careful analyst. Read the material below and answer with evidence.\n\nMaterial:\n"
SECOND_HEADER = (
    "System: reply in plain English, two sentences at most, and name the part you relied on. The user has a new "
    "request about a document that other colleagues have worked with before. The document follows.\n\n---\n"
)
FIRST_TASK = "\n\nQuestion: what was decided, and by whom?\n"
SECOND_TASK = "\n\nTask: list the open points that are left and who should take them up. Answer:\n"
TASK_IN_FRONT = (
    "Task: write a short briefing for someone who was not present. Mention the two most contested points, then say "
    "what happens next. Use the document below and nothing else.\n\nDocument:\n"
)


@dataclass(frozen=True)
class Case:
    kind: str
    donors: dict[str, str]
    """Text by donor id."""
    recipient: str


def build_cases(documents: list[str], seed: int = 7) -> list[Case]:
    """Every variation of every document; documents are used in groups of four for the composites."""
    cases: list[Case] = []
    for number, document in enumerate(documents):
        shuffler = random.Random(seed * 1000 + number)
        donor = {f"doc-{number}": FIRST_HEADER + document + FIRST_TASK}
        cases += [
            Case("instruction_variant", donor, SECOND_HEADER + document + SECOND_TASK),
            Case("same_evidence_new_task", donor, TASK_IN_FRONT + document),
            Case("word_edit", donor, SECOND_HEADER + _edit_words(document, 0.02, shuffler) + SECOND_TASK),
            Case("reflow", donor, SECOND_HEADER + _reflow(document) + SECOND_TASK),
            Case("rag_reorder", *_reorder(document, f"rag-{number}", shuffler)),
        ]
    for number in range(0, len(documents) - 3, 4):
        cases.append(Case("composite", *_composite(documents[number : number + 4], f"part-{number}")))
    return cases


def oracle_positions(recipient: list[int], donors: list[list[int]]) -> npt.NDArray[np.bool_]:
    """Recipient tokens inside a 16-gram that one of the true donors holds."""
    held = {tuple(donor[i : i + ORACLE_GRAM]) for donor in donors for i in range(len(donor) - ORACLE_GRAM + 1)}
    inside = np.zeros(len(recipient), np.bool_)
    for i in range(len(recipient) - ORACLE_GRAM + 1):
        if tuple(recipient[i : i + ORACLE_GRAM]) in held:
            inside[i : i + ORACLE_GRAM] = True
    return inside


def _edit_words(text: str, share: float, shuffler: random.Random) -> str:
    words = re.split(r"(\s+)", text)
    vocabulary = [word for word in words if word.isalpha()]
    for position in range(0, len(words), 2):
        if words[position].isalpha() and shuffler.random() < share:
            words[position] = shuffler.choice(vocabulary)
    return "".join(words)


def _reflow(text: str) -> str:
    """The same words under another line width."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(textwrap.fill(" ".join(paragraph.split()), 92) for paragraph in paragraphs)


def _segments(text: str, count: int) -> list[str]:
    size = len(text) // count
    cuts = [0, *(text.find("\n", size * i) + 1 or size * i for i in range(1, count)), len(text)]
    return [text[a:b] for a, b in pairwise(cuts)]


def _records(segments: list[str], label: str) -> str:
    return "\n".join(f"[{label} {number}]\n{segment}" for number, segment in enumerate(segments, 1))


def _reorder(document: str, donor_id: str, shuffler: random.Random) -> tuple[dict[str, str], str]:
    segments = _segments(document, 6)
    moved = [*segments]
    while moved == segments:
        shuffler.shuffle(moved)
    return {donor_id: FIRST_HEADER + _records(segments, "Record") + FIRST_TASK}, (
        SECOND_HEADER + _records(moved, "Retrieved passage") + SECOND_TASK
    )


def _composite(documents: list[str], donor_id: str) -> tuple[dict[str, str], str]:
    donors = {f"{donor_id}-{number}": FIRST_HEADER + document + FIRST_TASK for number, document in enumerate(documents)}
    quarters = [_segments(document, 4)[number] for number, document in enumerate(documents)]
    return donors, SECOND_HEADER + _records(quarters, "Source") + SECOND_TASK
