"""The document itself changes a little: its whitespace, or a few of its sentences."""

from __future__ import annotations

import re
import textwrap

from sembench.manifests.draws import Draws
from sembench.manifests.prompts import Prompt, question_last
from sembench.manifests.source import SourceDocument
from sembench.manifests.text_units import find_sentences, holds_answer
from sembench.manifests.transforms.draft import Context, DonorDraft, Draft, NotPossible

_REVISED_SHARE = 0.04
_ATTEMPTS = 20
_FEWEST_PARAGRAPHS = 6
_NUMBER = re.compile(r"\d{2,}")
_REVISIONS = (
    "As was corrected later, ",
    "According to the revised copy, ",
    "With one reservation, ",
    "On second reading, ",
    "As far as is known today, ",
)


def fuzzy_edit(source: SourceDocument, context: Context) -> list[Draft]:
    draws = context.draws
    line = f"Retrieved from mirror {draws.between(2, 40)} | revision {draws.digits(3)}\n"
    document, changed, paragraphs = reflow(source.document, draws)
    metadata = {"reflowed_paragraphs": changed, "paragraphs": paragraphs}
    return [_edited(source, _with_line(source, line, document), metadata)]


def sparse_edit(source: SourceDocument, context: Context) -> list[Draft]:
    fact = source.facts[0]
    for _ in range(_ATTEMPTS):
        document, revised, sentences = revise(source.document, fact.answers, context.draws)
        if context.claims(source, document):
            recipient = question_last(source, document, fact.question)
            return [_edited(source, recipient, {"revised_sentences": revised, "sentences": sentences})]
    raise NotPossible("every revision would repeat another source")


def reflow(document: str, draws: Draws) -> tuple[str, int, int]:
    """What a copy through another program does to whitespace, in how many paragraphs, and of how many.

    Blank lines go; in one paragraph of three, long lines are wrapped and short ones set in by two blanks. Were it all
    of them, hardly a block of 16 tokens would stay whole, and nothing could be told from the outcome.
    """
    paragraphs = [part for part in re.split(r"\n\s*\n", document) if part.strip()]
    if len(paragraphs) < _FEWEST_PARAGRAPHS:
        paragraphs = [line for line in document.split("\n") if line.strip()]
    chosen = set(draws.some(range(len(paragraphs)), max(1, len(paragraphs) // 3)))
    width = draws.between(68, 84)
    parts = [_rewrapped(part, width) if n in chosen else part for n, part in enumerate(paragraphs)]
    return "\n".join(parts), len(chosen), len(paragraphs)


def _rewrapped(paragraph: str, width: int) -> str:
    lines = []
    for line in paragraph.split("\n"):
        if len(line) > width:
            lines += textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        else:
            lines.append(f"  {line}")
    return "\n".join(lines)


def revise(document: str, answers: tuple[str, ...], draws: Draws) -> tuple[str, int, int]:
    """The document with about one sentence in 25 revised, how many those are, and of how many. Answers stay."""
    spans = find_sentences(document)
    open_ = [n for n, (start, end) in enumerate(spans) if not holds_answer(document[start:end], answers)]
    if not open_:
        raise NotPossible("every sentence states the answer")
    chosen = set(draws.some(open_, max(1, round(len(spans) * _REVISED_SHARE))))
    parts: list[str] = []
    last = 0
    for number, (start, end) in enumerate(spans):
        if number in chosen:
            parts += [document[last:start], _revision(document[start:end], draws)]
            last = end
    parts.append(document[last:])
    return "".join(parts), len(chosen), len(spans)


def _revision(sentence: str, draws: Draws) -> str:
    figures = list(_NUMBER.finditer(sentence))
    if figures:
        figure = draws.pick(figures)
        return sentence[: figure.start()] + _other_number(figure.group(), draws) + sentence[figure.end() :]
    return draws.pick(_REVISIONS) + sentence[:1].lower() + sentence[1:]


def _other_number(number: str, draws: Draws) -> str:
    while True:
        other = draws.digits(len(number)) if len(number) < 18 else draws.digits(9) + number[9:]
        if other != number:
            return other


def _with_line(source: SourceDocument, line: str, document: str) -> Prompt:
    whole = question_last(source, document, source.facts[0].question)
    start, end = whole.evidence[0]
    return Prompt(whole.text[:start] + line + whole.text[start:], ((start + len(line), end + len(line)),))


def _edited(source: SourceDocument, recipient: Prompt, metadata: dict[str, int]) -> Draft:
    fact = source.facts[0]
    donor = question_last(source, source.document, fact.question)
    return Draft(
        [DonorDraft(donor, "before the edit", source)], recipient, fact.question, fact.answers, metadata=metadata
    )
