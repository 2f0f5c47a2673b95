"""Documents of a wanted length: rows put together, or one cut, until the prompt around them is as long as asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from sembench.manifests.corpora import Corpus
from sembench.manifests.draws import Draws
from sembench.manifests.folder import make_gap_questions
from sembench.manifests.longbench import document_id, paraphrase
from sembench.manifests.source import Fact, SourceDocument
from sembench.manifests.synthetic import FRAME_TOKENS
from sembench.manifests.text_units import find_sentences, holds_answer

CountTokens = Callable[[str], int]
_SMALL_REST = 0.05
"""Of the length: so little room is left empty rather than filled with a scrap."""


@dataclass(frozen=True)
class Packing:
    band_tokens: int
    """Of the whole prompt."""
    count: CountTokens
    seed: int

    @property
    def room(self) -> int:
        return max(60, self.band_tokens - FRAME_TOKENS)


def pack(corpus: Corpus, packing: Packing) -> Iterator[SourceDocument]:
    """Documents of one length, no two of which have a text in common; as many as the corpus gives."""
    if corpus.rows is None:
        yield from _cut_texts(corpus, packing)
        return
    waiting: dict[str, list[SourceDocument]] = defaultdict(list)
    used: dict[str, int] = defaultdict(int)
    for row in corpus.rows():
        waiting[row.domain].append(row)
        used[row.domain] += _size(row, packing)
        if used[row.domain] >= packing.room:
            yield _joined(waiting.pop(row.domain), packing)
            del used[row.domain]


def _size(row: SourceDocument, packing: Packing) -> int:
    """With the line above it: beside a short dialogue that is not little."""
    return packing.count(f"[{_title(row)} 10]\n{row.document}\n\n")


def _joined(rows: list[SourceDocument], packing: Packing) -> SourceDocument:
    """The last of the rows is cut to what room is left, and nothing is asked of it unless it is the only one."""
    rest = packing.room - sum(_size(row, packing) for row in rows[:-1])
    last = replace(rows[-1], document=cut(rows[-1].document, rest, packing.count, rows[-1].facts[0].answers))
    whole = rows[:-1] or [last]
    shown = [*rows[:-1], last] if rest > packing.room * _SMALL_REST or not rows[:-1] else rows[:-1]
    if len(shown) == 1:
        return _named(shown[0], shown[0].document, shown[0].facts, [shown[0].source_id], packing)
    document = "\n\n".join(f"[{_title(row)} {number}]\n{row.document}" for number, row in enumerate(shown, 1))
    facts = [_asked_of(row, number) for number, row in enumerate(whole, 1)]
    scored = Draws(packing.seed, rows[0].dataset, rows[0].source_id, "asked").below(len(facts))
    ordered = (facts[scored], *facts[:scored], *facts[scored + 1 :])
    return _named(rows[0], document, ordered, [row.source_id for row in shown], packing)


def _title(row: SourceDocument) -> str:
    return row.noun[0].upper() + row.noun[1:]


def _asked_of(row: SourceDocument, number: int) -> Fact:
    fact = row.facts[0]
    question = f"{fact.question.rstrip()} Take {_title(row)} {number} only."
    return Fact(question, paraphrase(question), fact.answers)


def _named(
    row: SourceDocument, document: str, facts: tuple[Fact, ...], rows: list[str], packing: Packing
) -> SourceDocument:
    """Lengths are part of the name: the same rows are in documents of several lengths."""
    more = f"+{len(rows) - 1}" if len(rows) > 1 else ""
    return replace(
        row,
        source_id=f"{row.source_id}{more}@{packing.band_tokens}",
        document=document,
        facts=facts,
        metadata={"length_band": packing.band_tokens, "rows": rows, "document_id": document_id(document)},
    )


def cut(text: str, tokens: int, count: CountTokens, answers: tuple[str, ...] = ()) -> str:
    """Whole sentences of about so many tokens: from the start, or around an answer that stands in the text."""
    spans = find_sentences(text)
    sizes = [count(text[start:end]) for start, end in spans]
    if sum(sizes) <= tokens or not spans:
        return text
    answer = next((n for n, (start, end) in enumerate(spans) if holds_answer(text[start:end], answers)), 0)
    first, before = answer, 0
    while first > 0 and before + sizes[first - 1] <= tokens // 2:
        first -= 1
        before += sizes[first]
    last, used = first, sizes[first]
    while last + 1 < len(spans) and used + sizes[last + 1] <= tokens:
        last += 1
        used += sizes[last]
    return text[spans[first][0] : spans[last][1]]


def _cut_texts(corpus: Corpus, packing: Packing) -> Iterator[SourceDocument]:
    """Running text, one document after another. The questions are gaps in its own sentences."""
    for number, document in enumerate(_filled(_paragraphs(corpus.texts), packing)):
        facts = make_gap_questions(document, Draws(packing.seed, corpus.dataset, f"{packing.band_tokens}-{number}"))
        if facts:
            source = SourceDocument(corpus.dataset, corpus.dataset, f"part-{number}", "document", document, facts)
            yield _named(source, document, facts, [source.source_id], packing)


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (part for part in text.split("\n\n") if part.strip())


def _filled(paragraphs: Iterator[str], packing: Packing) -> Iterator[str]:
    page: list[str] = []
    used = 0
    for paragraph in paragraphs:
        tokens = packing.count(f"{paragraph}\n\n")
        if used + tokens > packing.room and page:
            yield "\n\n".join(page)
            page, used = [], 0
        page.append(paragraph if tokens <= packing.room else cut(paragraph, packing.room, packing.count))
        used += min(tokens, packing.room)
    if used >= packing.room * (1 - _SMALL_REST):
        yield "\n\n".join(page)
