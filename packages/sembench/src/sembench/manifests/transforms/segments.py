"""The document comes in parts: as records in another order, from several donors, or in turns of a conversation."""

from __future__ import annotations

from dataclasses import dataclass

from sembench.manifests.draws import Draws
from sembench.manifests.prompts import (
    ACKNOWLEDGE,
    ACKNOWLEDGED,
    OTHER_INSTRUCTION,
    SYSTEM,
    Prompt,
    SourceText,
    join_prompt,
    records_prompt,
    summary_task,
)
from sembench.manifests.source import SourceDocument
from sembench.manifests.text_units import holds_answer
from sembench.manifests.transforms.draft import Context, DonorDraft, Draft, donor_task, fact_within


def rag_reorder(source: SourceDocument, context: Context) -> list[Draft]:
    segments = context.segments(source, at_least=2)
    order = _deranged(len(segments), context.draws)
    first = [(f"[Record {number}]", segment) for number, segment in enumerate(segments, 1)]
    again = [
        (f"### Passage {rank}, retrieved as {context.draws.digits(5)}", segments[place])
        for rank, place in enumerate(order, 1)
    ]
    fact = source.facts[0]
    return [
        Draft(
            [DonorDraft(records_prompt(source, first, donor_task(source)), "records in order", source)],
            records_prompt(source, again, fact.question, OTHER_INSTRUCTION),
            fact.question,
            fact.answers,
            metadata={"segment_order": order},
        )
    ]


def multi_donor_composite(source: SourceDocument, context: Context) -> list[Draft]:
    segments = context.segments(source, at_least=2)
    donors = []
    for number, segment in enumerate(segments):
        fact = fact_within(source, segment)
        task = fact.question if fact else summary_task(source)
        alone = records_prompt(source, [("[Record 1]", segment)], task)
        donors.append(DonorDraft(alone, f"segment {number + 1} of {len(segments)}", source, {"segment": number}))
    scored = source.facts[0]
    together = [(f"### Passage {number}", segment) for number, segment in enumerate(segments, 1)]
    recipient = records_prompt(source, together, scored.question, OTHER_INSTRUCTION)
    return [Draft(donors, recipient, scored.question, scored.answers, metadata={"segments": len(segments)})]


def _deranged(count: int, draws: Draws) -> list[int]:
    """An order in which nothing keeps its place."""
    while True:
        order = draws.shuffled(range(count))
        if all(place != rank for rank, place in enumerate(order)):
            return order


@dataclass(frozen=True)
class _Turn:
    number: int
    segment: str
    question: str
    reply: str


def multi_turn(source: SourceDocument, context: Context) -> list[Draft]:
    """The donor is the conversation one turn earlier; trimming drops the first part, never the one with the answer."""
    turns = _turns(source, context.segments(source, at_least=3))
    scored = source.facts[0]
    last = _Turn(turns[-1].number, turns[-1].segment, scored.question, "")
    earlier = _conversation(source, turns[:-1])
    drafts = []
    for trimmed in (False, True):
        recipient = _conversation(source, [*turns[int(trimmed) : -1], last])
        metadata = {"turns": len(turns), "history_trimmed": trimmed}
        donors = [DonorDraft(earlier, "one turn earlier", source)]
        drafts.append(Draft(donors, recipient, scored.question, scored.answers, metadata=metadata))
    return drafts


def _turns(source: SourceDocument, segments: list[str]) -> list[_Turn]:
    if holds_answer(segments[0], source.facts[0].answers):
        segments = [segments[1], segments[0], *segments[2:]]
    turns = []
    for number, segment in enumerate(segments, 1):
        fact = fact_within(source, segment)
        question, reply = (fact.question, fact.answers[0]) if fact else (ACKNOWLEDGE, ACKNOWLEDGED)
        turns.append(_Turn(number, segment, question, reply))
    return turns


def _conversation(source: SourceDocument, turns: list[_Turn]) -> Prompt:
    """What is sent in the last of the turns: its reply is what the model has to write."""
    parts: list[str | SourceText] = [SYSTEM.format(noun=source.noun)]
    for turn in turns:
        parts += [f"\n\nUser: Part {turn.number}:\n", SourceText(turn.segment), f"\n\n{turn.question}\n\nAssistant:"]
        if turn is not turns[-1]:
            parts.append(f" {turn.reply}")
    return join_prompt(*parts)
