"""Documents written from the grammars of the domains, no two of which share a block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from sembench.manifests.domains import Domain, FactForm
from sembench.manifests.draws import Draws
from sembench.manifests.grammar import Cast, Clock, Filler, expand
from sembench.manifests.source import Fact, SourceDocument, Swapped
from sembench.manifests.text_units import split_pieces
from sembench.schema import InputError

RUN = 12
"""Pieces. A block of 16 tokens covers more than that unless it is full of rare names, which do not recur."""
FRAME_TOKENS = 130
"""What instruction, question and wrapper add to a document: a band is the length of the prompt."""
_MOST_FACTS = 8
_ATTEMPTS = 200


class Runs:
    """Every run of ``RUN`` pieces that was written so far, and whose source wrote it."""

    def __init__(self) -> None:
        self._owner: dict[int, int] = {}
        self._numbers: dict[str, int] = {}

    def numbered(self, text: str) -> list[int]:
        """The pieces of a text as numbers: their hash, unlike that of a text, is the same in every process."""
        numbers = self._numbers
        return [numbers.setdefault(piece, len(numbers)) for piece in split_pieces(text)]

    def free(self, codes: list[int], owner: int) -> list[int] | None:
        """The runs in numbered pieces; None where another source has one of them."""
        whole = tuple(codes)
        runs = [hash(whole[start : start + RUN]) for start in range(len(whole) - RUN + 1)]
        taken = self._owner
        for run in runs:
            if taken.get(run, owner) != owner:
                return None
        return runs

    def take(self, runs: list[int], owner: int) -> None:
        for run in runs:
            self._owner[run] = owner


class SyntheticWriter:
    """Writes sources one after another and keeps them apart."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._runs = Runs()
        self._owners: dict[str, int] = {}

    def claims(self, source: SourceDocument, document: str) -> bool:
        """Whether an edited document keeps its source apart from the others; if so it is kept apart from now on."""
        owner = self._owners[source.source_id]
        runs = self._runs.free(self._runs.numbered(document), owner)
        if runs is None:
            return False
        self._runs.take(runs, owner)
        return True

    def write(self, domain: Domain, source_id: str, band_tokens: int, *, with_swap: bool) -> SourceDocument:
        """A document of about ``band_tokens`` less the frame; ``with_swap`` also tells it of other people."""
        owner = self._owners.setdefault(source_id, len(self._owners))
        tokens = max(60, band_tokens - FRAME_TOKENS)
        page = _Page(domain, self._runs, owner, Draws(self._seed, source_id, "names"), tokens)
        wording = Draws(self._seed, source_id, "wording")
        lines = _compose(domain, page, wording, tokens)
        scored = wording.below(len(page.facts))
        swapped = None
        if with_swap:
            other = _Page(
                domain, self._runs, owner, Draws(self._seed, source_id, "other names"), tokens, apart_from=page
            )
            for line in lines:
                other.write(line.prefix, _same_wording(line), line.fact)
            swapped = Swapped(other.text, _scored_first(other.facts, scored))
        return SourceDocument(
            dataset=domain.name,
            domain=domain.name,
            source_id=source_id,
            noun=domain.noun,
            document=page.text,
            facts=_scored_first(page.facts, scored),
            swapped=swapped,
            metadata={"length_band": band_tokens},
        )


@dataclass(frozen=True)
class _Line:
    """A sentence that was accepted, names and figures not yet put in; ``fact`` where it states one."""

    prefix: str
    wording: str
    fact: FactForm | None
    propose: Callable[[], str]
    """Gives another sentence that could stand here."""


class _Page:
    """A document that grows by sentences which no other source has."""

    def __init__(
        self, domain: Domain, runs: Runs, owner: int, draws: Draws, tokens: int, apart_from: _Page | None = None
    ) -> None:
        self._domain = domain
        self._apart_from = apart_from
        self._runs = runs
        self._owner = owner
        self._draws = draws
        self._clock = Clock(draws)
        self._cast = Cast.drawn(draws, min(16, max(5, tokens // 150)))
        self._parts: list[str] = []
        self._tail: list[int] = []
        self._sentences: set[str] = set()
        self.lines = 0
        self.tokens = 0
        self.facts: list[Fact] = []

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def write(self, prefix: str, propose: Callable[[], str], form: FactForm | None = None) -> _Line:
        line = self.try_write(prefix, propose, form)
        if line is None:
            raise InputError(
                "too many sources or too long ones: the vocabulary is used up; ask for fewer or shorter ones"
            )
        return line

    def try_write(self, prefix: str, propose: Callable[[], str], form: FactForm | None) -> _Line | None:
        """Adds the first proposal that keeps the document apart from all others and its facts unambiguous."""
        number = self.lines + (prefix not in ("", self._domain.part_joint))
        for _ in range(_ATTEMPTS):
            wording = propose()
            filler = Filler(self._cast, self._draws, self._clock)
            sentence = _capitalized(filler.fill(wording))
            fact = _stated(form, filler) if form else None
            if sentence in self._sentences or self._confuses(sentence, fact):
                continue
            if self._append(prefix + sentence, number):
                self._sentences.add(sentence)
                self.facts += [fact] if fact else []
                return _Line(prefix, wording, form, propose)
        return None

    def _append(self, text: str, number: int) -> bool:
        """Whether the text could be added. What may follow must be free too, or the next sentence had no choice."""
        book, owner = self._runs, self._owner
        added = book.numbered(text)
        runs = book.free([*self._tail, *added], owner)
        if runs is None:
            return False
        tail = [*self._tail, *added][-(RUN - 1) :]
        for follower in (self._domain.part_joint, self._domain.joint.format(line=number + 1)):
            if book.free([*tail, *book.numbered(follower)], owner) is None:
                return False
        book.take(runs, owner)
        self._tail = tail
        self._parts.append(text)
        self.tokens += len(added)
        self.lines = number
        return True

    def _confuses(self, sentence: str, fact: Fact | None) -> bool:
        """An answer stands in one sentence only, and no question is asked of two; here and in ``apart_from``."""
        other = self._apart_from
        known = [*self.facts, *(other.facts if other else ())]
        if any(stated.answers[0] in sentence for stated in known):
            return True
        if fact is None:
            return False
        texts = self.text + (other.text if other else "")
        return fact.answers[0] in texts or any(stated.question == fact.question for stated in known)


def _compose(domain: Domain, page: _Page, draws: Draws, tokens: int) -> list[_Line]:
    """Parts with headings until the length is reached, with facts at even distances."""

    recent: deque[str] = deque(maxlen=len(domain.sentences) // 3)

    def worded(texts: tuple[str, ...]) -> Callable[[], str]:
        return lambda: expand(draws.pick(texts), domain.rules, draws)

    def sentence() -> str:
        # Nobody writes the same kind of sentence twice in a row.
        recent.append(draws.pick([text for text in domain.sentences if text not in recent]))
        return expand(recent[-1], domain.rules, draws)

    facts = min(_MOST_FACTS, max(2, tokens // 60))
    forms = [form for _ in range(2) for form in draws.shuffled(domain.facts)][:facts]
    lines = [page.write("", worded((domain.title,)))]
    while page.tokens < tokens or len(page.facts) < facts:
        lines.append(page.write(domain.part_joint, worded(domain.headings)))
        for number in range(draws.between(*domain.part_length)):
            stated = len(page.facts)
            due = stated < facts and page.tokens >= tokens * (stated + 0.5) / facts
            if number and page.tokens >= tokens and not due:
                break
            prefix = (domain.joint if number else domain.first_joint).format(line=page.lines + 1)
            fact = page.try_write(prefix, worded((forms[stated].sentence,)), forms[stated]) if due else None
            lines.append(fact or page.write(prefix, sentence))
    return lines


def _same_wording(line: _Line) -> Callable[[], str]:
    """The wording of a line again. One that would repeat another source whatever the names gives way to another."""
    attempts = count()
    return lambda: line.wording if next(attempts) < _ATTEMPTS // 4 else line.propose()


def _stated(form: FactForm, filler: Filler) -> Fact:
    return Fact(filler.fill(form.question), filler.fill(form.paraphrase), (filler.fill(form.answer),))


def _scored_first(facts: list[Fact], scored: int) -> tuple[Fact, ...]:
    return (facts[scored], *facts[:scored], *facts[scored + 1 :])


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
