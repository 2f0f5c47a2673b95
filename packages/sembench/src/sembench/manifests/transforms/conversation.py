"""A conversation that grows by one turn, with its whole history and with the oldest turn trimmed away."""

from __future__ import annotations

from dataclasses import dataclass

from sembench.manifests.prompts import ACKNOWLEDGE, ACKNOWLEDGED, SYSTEM, Evidence, Prompt, prompt
from sembench.manifests.source import Source
from sembench.manifests.text_units import holds_answer
from sembench.manifests.transforms.draft import Context, DonorDraft, Draft, fact_within


@dataclass(frozen=True)
class _Turn:
    number: int
    segment: str
    question: str
    reply: str


def multi_turn(source: Source, context: Context) -> list[Draft]:
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


def _turns(source: Source, segments: list[str]) -> list[_Turn]:
    if holds_answer(segments[0], source.facts[0].answers):
        segments = [segments[1], segments[0], *segments[2:]]
    turns = []
    for number, segment in enumerate(segments, 1):
        fact = fact_within(source, segment)
        question, reply = (fact.question, fact.answers[0]) if fact else (ACKNOWLEDGE, ACKNOWLEDGED)
        turns.append(_Turn(number, segment, question, reply))
    return turns


def _conversation(source: Source, turns: list[_Turn]) -> Prompt:
    """What is sent in the last of the turns: its reply is what the model has to write."""
    parts: list[str | Evidence] = [SYSTEM.format(noun=source.noun)]
    for turn in turns:
        parts += [f"\n\nUser: Part {turn.number}:\n", Evidence(turn.segment), f"\n\n{turn.question}\n\nAssistant:"]
        if turn is not turns[-1]:
            parts.append(f" {turn.reply}")
    return prompt(*parts)
