"""Donors that share a part of the recipient's text and have a stranger's in place of the rest."""

from __future__ import annotations

from itertools import cycle

from sembench.manifests.prompts import other_wording, question_last
from sembench.manifests.source import SourceDocument
from sembench.manifests.text_units import split_segments
from sembench.manifests.transforms.draft import Context, DonorDraft, Draft, NotPossible, donor_task

SHARES = (0.58, 0.68, 0.78, 0.88)
"""Of the document. Instructions differ, so that prompts of 2,000 tokens are alike in about 0.03 less of their words."""
_PASSAGES = 20
_FEWEST = 8
_SHORTEST = 80


def partial_overlap(source: SourceDocument, context: Context) -> list[Draft]:
    """One item for each share, so that every band of similarity has its requests."""
    passages = split_segments(source.document, _PASSAGES, _SHORTEST)
    if len(passages) < _FEWEST:
        raise NotPossible(f"needs {_FEWEST} passages of {_SHORTEST} characters, has {len(passages)}")
    stranger = context.stranger(source)
    fact = source.facts[0]
    recipient = other_wording(source, "\n\n".join(passages), fact.question)
    drafts = []
    for share in SHARES:
        others = cycle(split_segments(stranger.document, len(passages), _SHORTEST))
        kept = set(context.draws.some(range(len(passages)), round(share * len(passages))))
        mixed = [passage if number in kept else next(others) for number, passage in enumerate(passages)]
        donor = question_last(source, "\n\n".join(mixed), donor_task(source))
        label = f"{len(kept)} of {len(passages)} passages"
        drafts.append(
            Draft([DonorDraft(donor, label, source)], recipient, fact.question, fact.answers, metadata={"share": share})
        )
    return drafts
