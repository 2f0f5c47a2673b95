"""The study's prompts: donors that were served, and a recipient that shares text with them at other places."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

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
MAIN_TRANSFORMS = ("instruction_variant", "new_task", "reorder_4", "composite_4")
TRANSFORMS = (
    *MAIN_TRANSFORMS,
    "reorder_2",
    "reorder_8",
    "sparse_edit",
    "entity_swap",
    "composite_4_shared_sink",
    "composite_4_like_context",
)


@dataclass(frozen=True, slots=True)
class Case:
    transform: str
    name: str
    donors: dict[str, tuple[int, ...]]
    recipient: tuple[int, ...]
    answer: str


class Cases:
    """Deterministic: the same sources, size and seed give the same prompts."""

    def __init__(self, sources: Sources, encode: Encode, decode: Callable[[Sequence[int]], str], tokens: int) -> None:
        self._sources, self._encode, self._decode, self._tokens = sources, encode, decode, tokens

    def of(self, transform: str, count: int) -> list[Case]:
        makers: dict[str, Callable[[], Iterator[Case]]] = {
            "instruction_variant": lambda: self._one_document("instruction_variant", new_question=False),
            "new_task": lambda: self._one_document("new_task", new_question=True),
            "reorder_2": lambda: self._reordered(2),
            "reorder_4": lambda: self._reordered(4),
            "reorder_8": lambda: self._reordered(8),
            "composite_4": lambda: self._composite("composite_4", self._unrelated),
            "composite_4_shared_sink": lambda: self._composite("composite_4_shared_sink", self._alone),
            "composite_4_like_context": lambda: self._composite("composite_4_like_context", self._two_each),
            "sparse_edit": self._edited,
            "entity_swap": self._swapped,
        }
        cases = list(islice(makers[transform](), count))
        if len(cases) < count:
            raise SystemExit(f"the text yields {len(cases)} cases of {transform}, {count} are wanted")
        return cases

    def _one_document(self, transform: str, *, new_question: bool) -> Iterator[Case]:
        for number, document in enumerate(self._sources.documents(self._tokens)):
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
            asked = group[number % parts].asked[0]
            texts = [passage.tokens for passage in group]
            donor = self._prompt(instruction, texts, asked)
            moved = [texts[part] for part in order]
            yield self._case(f"reorder_{parts}", _named(group), {"donor": donor}, instruction, moved, asked)

    def _composite(self, transform: str, donors_of: DonorsOf) -> Iterator[Case]:
        """Each passage was served in another request."""
        groups = self._groups(4)
        for number, wanted in enumerate(groups):
            others = [groups[(number + step) % len(groups)] for step in (1, 2, 3)]
            asked = wanted[number % 4].asked[0]
            texts = [passage.tokens for passage in wanted]
            donors = {
                f"donor-{place}{which}": donor
                for place in range(4)
                for which, donor in donors_of(wanted, others, place).items()
            }
            yield self._case(transform, _named(wanted), donors, INSTRUCTIONS[4], texts, asked)

    def _unrelated(self, wanted: list[Passage], others: list[list[Passage]], place: int) -> Donors:
        """Among passages that the recipient has none of, at another place."""
        neighbours = [group[place].tokens for group in others]
        slot = (place + 1) % 4
        texts = [*neighbours[:slot], wanted[place].tokens, *neighbours[slot:]]
        return {"": self._prompt(INSTRUCTIONS[place], texts, wanted[place].asked[0])}

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
        for number, document in enumerate(self._sources.documents(self._tokens)):
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
        for document in self._sources.documents(self._tokens):
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
        passages = self._sources.passages(self._tokens // parts)
        return [passages[start : start + parts] for start in range(0, len(passages) - parts + 1, parts)]

    def _case(
        self,
        transform: str,
        name: str,
        donors: dict[str, tuple[int, ...]],
        instruction: str,
        texts: Sequence[tuple[int, ...]],
        asked: Asked,
    ) -> Case:
        return Case(transform, name, donors, self._prompt(instruction, texts, asked), asked.answer)

    def _prompt(self, instruction: str, texts: Sequence[tuple[int, ...]], asked: Asked) -> tuple[int, ...]:
        """Parts are tokenized apart, as serving templates do, so that equal text stays equal tokens."""
        head = self._encode(f"<|im_start|>system\n{instruction}<|im_end|>\n<|im_start|>user\n")
        between = self._encode("\n\n")
        body = [token for text in texts for token in (*text, *between)]
        tail = self._encode(f"Question: {asked.question}<|im_end|>\n<|im_start|>assistant\n")
        return (*head, *body, *tail)


def _named(group: Sequence[Passage]) -> str:
    return "+".join(passage.source for passage in group)


def _with_other_names(text: str, names: dict[str, str]) -> str:
    renamed = re.sub(r"\b[A-Z][a-z]{3,}\b", lambda found: names.get(found[0], found[0]), text)
    return re.sub(r"\d", lambda found: str((int(found[0]) + 3) % 10), renamed)
