"""The study's prompts: donors that were served, and a recipient that shares text with them at other places."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from quality_data.facts import NOT_STATED, OR_NOT_STATED, changed_fact
from quality_data.sources import Asked, Encode, Passage, Sources

Donors = dict[str, tuple[int, ...]]
DonorsOf = Callable[[list[Passage], list[list[Passage]], int], Donors]

INSTRUCTIONS = (
    "You are a careful assistant. Answer from the text only.",
    "Read the following material and then answer the question at its end. Be brief and exact.",
    "Act as an analyst who prepares notes for a colleague. Use plain language, name people where the text does, "
    "and say so when the text does not answer the question.",
    "Today you help a newcomer. Explain step by step, but do not add facts of your own.",
    "Answer in at most three sentences.",
)
MAIN_TRANSFORMS = ("instruction_variant", "new_task", "reorder_4", "composite_4", "reorder_10", "composite_10")
FACT_TRANSFORMS = ("copy_verbatim", "edited_fact", "absent_fact")
TRANSFORMS = (
    *MAIN_TRANSFORMS,
    *FACT_TRANSFORMS,
    "reorder_2",
    "reorder_8",
    "sparse_edit",
    "entity_swap",
    "composite_4_shared_sink",
    "composite_4_like_context",
)
MANY = 10
"""Passages of a prompt that is long enough for them."""
LONG_PROMPT = 4000


def passages_of(transform: str, prompt_tokens: int) -> int:
    """Documents or passages of such a prompt, each with donors of its own or at another place."""
    if transform == "copy_verbatim":
        return MANY if prompt_tokens >= LONG_PROMPT else 4
    return next((int(part) for part in transform.split("_") if part.isdigit()), 1)


@dataclass(frozen=True, slots=True)
class Case:
    transform: str
    name: str
    donors: dict[str, tuple[int, ...]]
    recipient: tuple[int, ...]
    answer: str
    judge: str = "words"
    """How an answer is scored: by common words, as a quote, a fact, or the word that there is none."""
    outdated: str = ""
    """What the donor's text would have answered."""
    rule: str = ""
    """That donor and recipient hold, and by which consequences follow."""


class Cases:
    """Deterministic: the same sources, size and seed give the same prompts."""

    def __init__(self, sources: Sources, encode: Encode, decode: Callable[[Sequence[int]], str], tokens: int) -> None:
        self._sources, self._encode, self._decode, self._tokens = sources, encode, decode, tokens

    @cached_property
    def _documents(self) -> list[Passage]:
        return self._sources.documents(self._tokens)

    def of(self, transform: str, first: int, count: int) -> list[Case]:
        """Cases ``first`` and the following."""
        cases = list(islice(self._all_of(transform), first, first + count))
        if len(cases) < count:
            raise SystemExit(
                f"the text yields {first + len(cases)} cases of {transform} with {self._tokens} tokens, "
                f"{first + count} are wanted: lower --cases or --first-case, or name more text with --data"
            )
        return cases

    def _all_of(self, transform: str) -> Iterator[Case]:
        kind, _, parts = transform.partition("_")
        if kind == "reorder":
            return self._reordered(int(parts))
        if transform in ("composite_4_shared_sink", "composite_4_like_context"):
            return self._composite(transform, 4, self._alone if transform.endswith("sink") else self._two_each)
        if kind == "composite":
            return self._composite(transform, int(parts), self._unrelated)
        makers: dict[str, Callable[[], Iterator[Case]]] = {
            "instruction_variant": lambda: self._one_document("instruction_variant", new_question=False),
            "new_task": lambda: self._one_document("new_task", new_question=True),
            "sparse_edit": self._edited,
            "entity_swap": self._swapped,
            "copy_verbatim": self._quoted,
            "edited_fact": lambda: self._with_fact("edited_fact"),
            "absent_fact": lambda: self._with_fact("absent_fact"),
        }
        return makers[transform]()

    def _one_document(self, transform: str, *, new_question: bool) -> Iterator[Case]:
        for number, document in enumerate(self._documents):
            first, second = INSTRUCTIONS[number % 5], INSTRUCTIONS[(number + 1 + number // 5 % 4) % 5]
            asked = document.asked[1 if new_question else 0]
            donor = self._prompt(first, [document.tokens], document.asked[0])
            yield self._case(transform, document.source, {"donor": donor}, second, [document.tokens], asked)

    def _reordered(self, parts: int) -> Iterator[Case]:
        for number, group in enumerate(self._groups(parts)):
            order = list(range(parts))
            shuffling = random.Random(number)
            while any(place == part for place, part in enumerate(order)):
                shuffling.shuffle(order)
            instruction = INSTRUCTIONS[number % 5]
            asked = _asked_about(group, number).asked[0]
            texts = [passage.tokens for passage in group]
            donor = self._prompt(instruction, texts, asked)
            moved = [texts[part] for part in order]
            yield self._case(f"reorder_{parts}", _named(group), {"donor": donor}, instruction, moved, asked)

    def _composite(self, transform: str, parts: int, donors_of: DonorsOf) -> Iterator[Case]:
        """Each passage was served in another request."""
        groups = self._groups(parts)
        for number, wanted in enumerate(groups):
            asked = _asked_about(wanted, number).asked[0]
            yield self._put_together(transform, groups, number, donors_of, asked)

    def _put_together(
        self, transform: str, groups: list[list[Passage]], number: int, donors_of: DonorsOf, asked: Asked, **judged: str
    ) -> Case:
        wanted = groups[number]
        others = [groups[(number + step) % len(groups)] for step in range(1, len(wanted))]
        donors = {
            f"donor-{place}{which}": donor
            for place in range(len(wanted))
            for which, donor in donors_of(wanted, others, place).items()
        }
        texts = [passage.tokens for passage in wanted]
        return self._case(transform, _named(wanted), donors, INSTRUCTIONS[4], texts, asked, **judged)

    def _quoted(self) -> Iterator[Case]:
        """A sentence of one passage is to be copied word for word; each passage was served in another request."""
        groups = self._groups(passages_of("copy_verbatim", self._tokens))
        for number, wanted in enumerate(groups):
            sentence = _sentence_of(self._decode(_asked_about(wanted, number).tokens), number)
            if sentence:
                begins = " ".join(sentence.split()[:5])
                asked = Asked(f'Copy, word for word, the sentence of the text that begins with "{begins}".', sentence)
                yield self._put_together("copy_verbatim", groups, number, self._unrelated, asked, judge="quote")

    def _with_fact(self, transform: str) -> Iterator[Case]:
        """A fact in the first third of a document and a rule in the last: the donor's fact was another, or is gone."""
        for number, document in enumerate(self._documents):
            fact = changed_fact(number if transform == "edited_fact" else 2 * number)
            first, last = len(document.tokens) // 3, 2 * len(document.tokens) // 3
            parts = (document.tokens[:first], document.tokens[first:last], document.tokens[last:])
            told, rule = self._paragraph(fact.before), self._paragraph(fact.rule)
            now = self._paragraph(fact.now) if transform == "edited_fact" else ()
            asked = Asked(fact.question, fact.answer)
            if transform == "absent_fact":
                asked = Asked(fact.question + OR_NOT_STATED, NOT_STATED)
            before, after = ((*parts[0], *said, *parts[1], *rule, *parts[2]) for said in (told, now))
            donor = self._prompt(INSTRUCTIONS[0], [before], asked)
            judge = "fact" if transform == "edited_fact" else "absent"
            yield self._case(
                transform,
                document.source,
                {"donor": donor},
                INSTRUCTIONS[1],
                [after],
                asked,
                judge=judge,
                outdated=fact.outdated,
                rule=fact.rule,
            )

    def _paragraph(self, text: str) -> tuple[int, ...]:
        return tuple(self._encode(f"\n\n{text}\n\n"))

    def _unrelated(self, wanted: list[Passage], others: list[list[Passage]], place: int) -> Donors:
        """Among passages that the recipient has none of, at another place."""
        neighbours = [group[place].tokens for group in others]
        slot = (place + 1) % len(wanted)
        texts = [*neighbours[:slot], wanted[place].tokens, *neighbours[slot:]]
        return {"": self._prompt(INSTRUCTIONS[place % 4], texts, wanted[place].asked[0])}

    def _alone(self, wanted: list[Passage], others: list[list[Passage]], place: int) -> Donors:
        """By itself behind the front that all requests share."""
        return {"": self._prompt(INSTRUCTIONS[4], [wanted[place].tokens], wanted[place].asked[0])}

    def _two_each(self, wanted: list[Passage], others: list[list[Passage]], place: int) -> Donors:
        """One with two of the recipient's passages in front, and a newer, unrelated one: discovery has the choice."""
        friends = [passage.tokens for passage in wanted if passage is not wanted[place]][:2]
        texts = [*reversed(friends), wanted[place].tokens, others[0][place].tokens]
        related = self._prompt(INSTRUCTIONS[place], texts, wanted[place].asked[0])
        return {"-related": related, "-unrelated": self._unrelated(wanted, others, place)[""]}

    def _edited(self) -> Iterator[Case]:
        for number, document in enumerate(self._documents):
            words = re.split(r"(\s+)", self._decode(document.tokens))
            chosen = random.Random(number)
            places = [place for place, word in enumerate(words) if word.isalpha()]
            for place in chosen.sample(places, max(1, len(places) // 100)):
                words[place] = words[chosen.choice(places)]
            edited = tuple(self._encode("".join(words)))
            donor = self._prompt(INSTRUCTIONS[0], [document.tokens], document.asked[0])
            yield self._case(
                "sparse_edit", document.source, {"donor": donor}, INSTRUCTIONS[1], [edited], document.asked[0]
            )

    def _swapped(self) -> Iterator[Case]:
        """Other names and numbers everywhere: nothing of the donor's answer may show through."""
        for document in self._documents:
            text = self._decode(document.tokens)
            names = sorted(set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{3,}", text)))
            if len(names) < 4:
                continue
            changed = _with_other_names(text, dict(zip(names, [*names[1:], names[0]], strict=True)))
            donor = self._prompt(INSTRUCTIONS[0], [document.tokens], document.asked[0])
            tokens = tuple(self._encode(changed))
            yield self._case(
                "entity_swap",
                document.source,
                {"donor": donor},
                INSTRUCTIONS[1],
                [tokens],
                Asked(document.asked[0].question),
            )

    def _groups(self, parts: int) -> list[list[Passage]]:
        """Passages of as many different articles as there are, ``parts`` together: what a retriever brings."""
        size = self._tokens // parts
        few = parts < MANY and self._tokens < LONG_PROMPT
        passages = self._sources.passages(size) if few else self._sources.mixed_passages(size)
        return [passages[start : start + parts] for start in range(0, len(passages) - parts + 1, parts)]

    def _case(
        self,
        transform: str,
        name: str,
        donors: dict[str, tuple[int, ...]],
        instruction: str,
        texts: Sequence[tuple[int, ...]],
        asked: Asked,
        **judged: str,
    ) -> Case:
        return Case(transform, name, donors, self._prompt(instruction, texts, asked), asked.answer, **judged)

    def _prompt(self, instruction: str, texts: Sequence[tuple[int, ...]], asked: Asked) -> tuple[int, ...]:
        """Parts are tokenized apart, as serving templates do, so that equal text stays equal tokens."""
        head = self._encode(f"<|im_start|>system\n{instruction}<|im_end|>\n<|im_start|>user\n")
        between = self._encode("\n\n")
        body = [token for text in texts for token in (*text, *between)]
        tail = self._encode(f"Question: {asked.question}<|im_end|>\n<|im_start|>assistant\n")
        return (*head, *body, *tail)


def _asked_about(group: Sequence[Passage], number: int) -> Passage:
    """A passage whose question has a short answer, where there is one."""
    short = [passage for passage in group if 0 < len(passage.asked[0].answer.split()) <= 8] or group
    return short[number % len(short)]


def _sentence_of(text: str, number: int) -> str:
    """One of 10 to 25 words from the middle of the text; empty where there is none."""
    sentences = re.split(r"(?<=[.!?])\s+", text)[1:-1]
    fitting = [each for each in sentences if 10 <= len(each.split()) <= 25 and "\n" not in each]
    return fitting[number % len(fitting)] if fitting else ""


def _named(group: Sequence[Passage]) -> str:
    return "+".join(passage.source for passage in group)


def _with_other_names(text: str, names: dict[str, str]) -> str:
    renamed = re.sub(r"\b[A-Z][a-z]{3,}\b", lambda found: names.get(found[0], found[0]), text)
    return re.sub(r"\d", lambda found: str((int(found[0]) + 3) % 10), renamed)
