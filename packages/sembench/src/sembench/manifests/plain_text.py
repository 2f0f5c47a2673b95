"""Plain text files as sources, with questions taken from the text itself."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from sembench.manifests.draws import Draws
from sembench.manifests.longbench import document_id
from sembench.manifests.source import Fact, Source
from sembench.manifests.text_units import sentence_spans, squeezed
from sembench.schema import InputError

SUFFIXES = (".txt", ".rst", ".md")
_FACTS = 6
_LENGTHS = (60, 240)
"""Characters of a sentence that can be asked about: enough to be found, short enough to be read."""
_TERM = re.compile(r"\b(?:\d[\d.,-]{2,}\d|[A-Z][a-z]{3,}(?: [A-Z][a-z]{2,})*|[a-z]{7,})\b")


def source_of_file(path: Path, root: Path, seed: int) -> Source:
    """The questions are gaps in sentences of the text; what fills a gap stands nowhere else in it."""
    text = _text(path).strip()
    name = path.relative_to(root).as_posix()
    dataset = path.relative_to(root).parent.as_posix()
    facts = gap_questions(text, Draws(seed, name, "gaps"))
    if not facts:
        raise InputError(f"{path}: holds no sentence that a question could be made of; take it out of --source")
    dataset = "text" if dataset == "." else dataset
    return Source(dataset, dataset, name, "document", text, facts, metadata={"document_id": document_id(text)})


def gap_questions(text: str, draws: Draws) -> tuple[Fact, ...]:
    """A few, in random order, from sentences all over the text."""
    occurrences = Counter(match.group() for match in _TERM.finditer(text))
    flat = squeezed(text)
    facts: list[Fact] = []
    for start, end in draws.shuffled(sentence_spans(text)):
        sentence = squeezed(text[start:end])
        if not _LENGTHS[0] <= len(sentence) <= _LENGTHS[1]:
            continue
        once = [
            match
            for match in _TERM.finditer(sentence)
            if occurrences[match.group()] == 1 and flat.count(match.group()) == 1 and match.start() > 0
        ]
        if once:
            facts.append(_gap(sentence, draws.pick(once)))
        if len(facts) == _FACTS:
            break
    return tuple(facts)


def _gap(sentence: str, term: re.Match[str]) -> Fact:
    gap = sentence[: term.start()] + "____" + sentence[term.end() :]
    return Fact(
        f"Which words of the document belong in the gap of this sentence? {gap}",
        f"Complete this sentence as it stands in the document, and give the missing words only: {gap}",
        (term.group(),),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text at byte {error.start}; convert it or take it out of --source"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
