"""What reuse may quietly get wrong: a quote, a fact that has changed, and one that is no longer there.

Each names its judge in ``metadata.judge``: an answer passes by what it says, not by how many of its words are right.
"""

from __future__ import annotations

from collections.abc import Sequence

from sembench.manifests.prompts import OTHER_INSTRUCTION, other_wording, question_last, records_prompt
from sembench.manifests.source import Fact, SourceDocument
from sembench.manifests.text_units import find_sentences, holds_answer
from sembench.manifests.transforms.controls import swap_entities
from sembench.manifests.transforms.draft import Context, DonorDraft, Draft, NotPossible, donor_task

NOT_STATED = "not stated"
_QUOTED_WORDS = range(8, 31)
_BEGINNING = 5
"""Words by which a sentence to copy is named."""
_SHELVES = ("red", "blue")


def copy_verbatim(source: SourceDocument, context: Context) -> list[Draft]:
    """A sentence is to be copied word for word out of passages that no longer stand where they stood."""
    segments = context.segments(source, at_least=2)
    sentence = _sentence(segments[0], source.document)
    donor = records_prompt(source, _headed(segments), donor_task(source))
    begins = " ".join(sentence.split()[:_BEGINNING])
    question = f'Copy, word for word, the sentence that begins with "{begins}".'
    recipient = records_prompt(source, _headed([*segments[1:], segments[0]]), question, OTHER_INSTRUCTION)
    return [
        Draft(
            [DonorDraft(donor, "passages in order", source)],
            recipient,
            question,
            (sentence,),
            metadata={"judge": "quote"},
        )
    ]


def edited_fact(source: SourceDocument, context: Context) -> list[Draft]:
    """The donor's document gave another answer. Asked for directly, and through a rule that both documents end with."""
    fact, answer, other = _changed(source, context)
    judged = {"judge": "fact", "donor_answers": [other]}
    before = source.document.replace(answer, other)
    direct = Draft(
        [DonorDraft(question_last(source, before, fact.question), "before the change", source)],
        other_wording(source, source.document, fact.question),
        fact.question,
        (answer,),
        metadata={**judged, "asked": "directly"},
    )
    old_shelf, new_shelf = _SHELVES if context.draws.between(0, 1) else _SHELVES[::-1]
    rule = (
        f'\n\nFiling note: where the answer to "{fact.question}" is {other}, this {source.noun} belongs on the '
        f"{old_shelf} shelf. Where it is {answer}, it belongs on the {new_shelf} shelf."
    )
    question = f"On which shelf does this {source.noun} belong, by the filing note?"
    through = Draft(
        [DonorDraft(question_last(source, before + rule, question), "before the change", source)],
        other_wording(source, source.document + rule, question),
        question,
        (new_shelf,),
        metadata={"judge": "fact", "donor_answers": [old_shelf], "asked": "through its consequence"},
    )
    return [direct, through]


def absent_fact(source: SourceDocument, context: Context) -> list[Draft]:
    """The donor's document had the answer; the recipient's has every sentence with it taken out."""
    fact = source.facts[0]
    without = _without(source.document, fact.answers)
    question = f"{fact.question} If the {source.noun} does not say, answer: {NOT_STATED}."
    return [
        Draft(
            [DonorDraft(question_last(source, source.document, question), "with the fact", source)],
            other_wording(source, without, question),
            question,
            (NOT_STATED,),
            metadata={"judge": "absent", "donor_answers": list(fact.answers)},
        )
    ]


def _changed(source: SourceDocument, context: Context) -> tuple[Fact, str, str]:
    """The scored fact, its answer, and another answer that the document does not have."""
    fact = source.facts[0]
    if not fact.answers or fact.answers[0] not in source.document:
        raise NotPossible("the document does not state the answer word for word")
    swapped = source.swapped or swap_entities(source, context.draws)
    other = swapped.facts[0].answers[0] if swapped else fact.answers[0]
    if other == fact.answers[0] or holds_answer(source.document, (other,)):
        raise NotPossible("no other answer is at hand")
    return fact, fact.answers[0], other


def _without(document: str, answers: tuple[str, ...]) -> str:
    if not answers or not holds_answer(document, answers):
        raise NotPossible("the document does not state the answer word for word")
    parts, last = [], 0
    for start, end in find_sentences(document):
        if holds_answer(document[start:end], answers):
            parts.append(document[last:start])
            last = end
    rest = "".join([*parts, document[last:]])
    if holds_answer(rest, answers):
        raise NotPossible("the answer stands across two sentences")
    return rest


def _sentence(segment: str, document: str) -> str:
    """The first of a fitting length that the document has once, beginning and all."""
    for start, end in find_sentences(segment):
        sentence = segment[start:end].strip()
        words = sentence.split()
        if len(words) in _QUOTED_WORDS and document.count(" ".join(words[:_BEGINNING])) == 1:
            return sentence
    raise NotPossible("no sentence of 8 to 30 words with a beginning of its own")


def _headed(segments: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"[Record {number}]", segment) for number, segment in enumerate(segments, 1)]
