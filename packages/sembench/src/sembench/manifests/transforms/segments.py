"""The document comes as records: in another order, or from several donors."""

from __future__ import annotations

from sembench.manifests.draws import Draws
from sembench.manifests.prompts import OTHER_INSTRUCTION, records, summary_task
from sembench.manifests.source import Source
from sembench.manifests.transforms.draft import Context, DonorDraft, Draft, donor_task, fact_within


def rag_reorder(source: Source, context: Context) -> list[Draft]:
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
            [DonorDraft(records(source, first, donor_task(source)), "records in order", source)],
            records(source, again, fact.question, OTHER_INSTRUCTION),
            fact.question,
            fact.answers,
            metadata={"segment_order": order},
        )
    ]


def multi_donor_composite(source: Source, context: Context) -> list[Draft]:
    segments = context.segments(source, at_least=2)
    donors = []
    for number, segment in enumerate(segments):
        fact = fact_within(source, segment)
        task = fact.question if fact else summary_task(source)
        alone = records(source, [("[Record 1]", segment)], task)
        donors.append(DonorDraft(alone, f"segment {number + 1} of {len(segments)}", source, {"segment": number}))
    scored = source.facts[0]
    together = [(f"### Passage {number}", segment) for number, segment in enumerate(segments, 1)]
    recipient = records(source, together, scored.question, OTHER_INSTRUCTION)
    return [Draft(donors, recipient, scored.question, scored.answers, metadata={"segments": len(segments)})]


def _deranged(count: int, draws: Draws) -> list[int]:
    """An order in which nothing keeps its place."""
    while True:
        order = draws.shuffled(range(count))
        if all(place != rank for rank, place in enumerate(order)):
            return order
