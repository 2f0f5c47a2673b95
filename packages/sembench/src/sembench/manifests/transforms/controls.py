"""Controls: donors from which nothing may be taken over."""

from __future__ import annotations

from sembench.manifests.entity_swap import swap_entities
from sembench.manifests.prompts import other_wording, question_last
from sembench.manifests.source import Source
from sembench.manifests.transforms.draft import Context, DonorDraft, Draft, NotPossible


def entity_swap_control(source: Source, context: Context) -> list[Draft]:
    """The donor reads like the recipient, and each of its names and figures is another."""
    swapped = source.swapped or swap_entities(source, context.draws)
    if swapped is None:
        raise NotPossible("no names or figures to exchange")
    scored, other = source.facts[0], swapped.facts[0]
    wrong = [answer for answer in other.answers if answer not in scored.answers]
    donor = question_last(source, swapped.document, other.question)
    return [
        Draft(
            [DonorDraft(donor, "other names and figures", source, {"derived": "entity_swap"})],
            question_last(source, source.document, scored.question),
            scored.question,
            scored.answers,
            metadata={"control": "entity_swap", "donor_answers": wrong},
        )
    ]


def negative_control(source: Source, context: Context) -> list[Draft]:
    """The donor is of another domain and is asked in other words: whatever is reused of it is a fault."""
    stranger = context.stranger(source)
    scored = source.facts[0]
    donor = other_wording(stranger, stranger.document, stranger.facts[0].question)
    return [
        Draft(
            [DonorDraft(donor, "another domain", stranger)],
            question_last(source, source.document, scored.question),
            scored.question,
            scored.answers,
            negative_control=True,
            metadata={"control": "negative", "donor_answers": list(stranger.facts[0].answers)},
        )
    ]
