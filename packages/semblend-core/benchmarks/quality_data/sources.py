"""Text with questions, cut to passages of a wanted number of tokens: meetings, encyclopedia articles, papers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Encode = Callable[[str], list[int]]

PAPER_QUESTIONS = (
    "What problem does this section describe, and what does it propose?",
    "Which arguments are given against the alternatives?",
    "List the most important terms that are defined here.",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a passage; ``answer`` is empty where the source has none."""

    question: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """Consecutive text of one source, with at least one question."""

    source: str
    tokens: tuple[int, ...]
    asked: tuple[Asked, ...]


class Sources:
    """Every passage comes out once per run of an iterator; the order depends on ``seed`` alone."""

    def __init__(self, folder: Path, encode: Encode, seed: int = 7) -> None:
        self._encode = encode
        self._meetings = _meetings(folder)
        self._articles = _articles(folder)
        self._papers = _papers(folder)
        self._seed = seed
        if not (self._meetings and self._articles and self._papers):
            raise SystemExit(
                f"--data {folder}: needs QMSum meetings (*.jsonl), SQuAD articles (*.json) and papers (*.rst)"
            )

    def documents(self, tokens: int) -> list[Passage]:
        """Documents of about ``tokens``, each with two questions or more: meetings, articles and papers in turn."""
        kinds = [
            list(self._of_meetings(tokens)),
            list(self._of_articles(tokens, questions=2)),
            list(self._of_papers(tokens)),
        ]
        return self._in_turn(kinds)

    def passages(self, tokens: int) -> list[Passage]:
        """Passages of about ``tokens`` with a question and a short answer each."""
        passages = list(self._of_articles(tokens, questions=1))
        random.Random(self._seed).shuffle(passages)
        return passages

    def mixed_passages(self, tokens: int) -> list[Passage]:
        """Passages of articles, meetings and papers in turn: more text than the articles alone have."""
        return self._in_turn(
            [
                list(self._of_articles(tokens, questions=1)),
                list(self._parts_of_meetings(tokens)),
                list(self._of_papers(tokens, step=tokens)),
            ]
        )

    def _in_turn(self, kinds: list[list[Passage]]) -> list[Passage]:
        """Shuffled; one of each kind as long as there are any."""
        for number, kind in enumerate(kinds):
            random.Random(self._seed + number).shuffle(kind)
        longest = max(map(len, kinds))
        return [kind[number] for number in range(longest) for kind in kinds if number < len(kind)]

    def _of_meetings(self, tokens: int) -> Iterator[Passage]:
        for name, turns, asked in self._meetings:
            for start in range(0, len(turns), max(1, len(turns) // 3)):
                text = "\n".join(turns[start:])[: tokens * 8]
                ids = self._encode(text)[:tokens]
                if len(ids) == tokens:
                    # Questions about this part of the meeting; the first ones are about all of it.
                    here = [each for where, each in asked if where is None or start <= where]
                    yield Passage(f"{name}/{start}", tuple(ids), tuple(here[:4]))

    def _parts_of_meetings(self, tokens: int) -> Iterator[Passage]:
        """All of each meeting, without overlaps, asked about as a whole."""
        for name, turns, asked in self._meetings:
            ids = self._encode("\n".join(turns))
            about_all = tuple(each for where, each in asked if where is None)[:4]
            for start in range(0, len(ids) - tokens + 1, tokens):
                yield Passage(f"{name}/tokens-{start}", tuple(ids[start : start + tokens]), about_all)

    def _of_articles(self, tokens: int, questions: int) -> Iterator[Passage]:
        for title, paragraphs in self._articles:
            ids: list[int] = []
            asked: list[Asked] = []
            for number, (text, about) in enumerate(paragraphs):
                encoded = self._encode(text + "\n")
                kept = encoded[: tokens - len(ids)]
                ids += kept
                # A paragraph may be cut short; only what the part that is kept answers is asked.
                last_start = len(text) * len(kept) / len(encoded) - 40
                asked += [each for start, each in about if start < last_start][:2]
                if len(ids) == tokens:
                    if len(asked) >= questions:
                        yield Passage(f"{title}/{number}", tuple(ids), tuple(asked[:4]))
                    ids, asked = [], []

    def _of_papers(self, tokens: int, step: int | None = None) -> Iterator[Passage]:
        for name, text in self._papers:
            ids = self._encode(text)
            for start in range(min(tokens, 2048), len(ids) - tokens, step or 3 * tokens):
                asked = tuple(Asked(question) for question in PAPER_QUESTIONS)
                yield Passage(f"{name}/{start}", tuple(ids[start : start + tokens]), asked)


def _meetings(folder: Path) -> list[tuple[str, list[str], list[tuple[int | None, Asked]]]]:
    meetings = []
    for file in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(file.read_text().splitlines()):
            meeting = json.loads(line)
            turns = [f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"]]
            asked: list[tuple[int | None, Asked]] = []
            for each in meeting["specific_query_list"]:
                where = int(each["relevant_text_span"][0][0]) if each["relevant_text_span"] else None
                asked.append((where, Asked(each["query"], each["answer"])))
            asked += [(None, Asked(each["query"], each["answer"])) for each in meeting["general_query_list"]]
            asked.append((None, Asked("Which decisions were taken in this part of the meeting?")))
            meetings.append((f"meeting-{number}", turns, asked))
    return meetings


def _articles(folder: Path) -> list[tuple[str, list[tuple[str, list[tuple[int, Asked]]]]]]:
    articles = []
    for file in sorted(folder.glob("*.json")):
        for article in json.loads(file.read_text())["data"]:
            paragraphs = []
            for paragraph in article["paragraphs"]:
                answered = [each for each in paragraph["qas"] if each["answers"]]
                asked = [
                    (each["answers"][0]["answer_start"], Asked(each["question"], each["answers"][0]["text"]))
                    for each in answered
                ]
                paragraphs.append((paragraph["context"], asked))
            articles.append((article["title"], paragraphs))
    return articles


def _papers(folder: Path) -> list[tuple[str, str]]:
    return [(file.stem, file.read_text()) for file in sorted(folder.rglob("*.rst"))]
