"""The document stays as it is; what stands around it changes."""

from __future__ import annotations

from sembench.manifests.prompts import (
    Prompt,
    document_first,
    followed_by,
    other_wording,
    question_last,
    task_first,
)
from sembench.manifests.source import SourceDocument
from sembench.manifests.transforms.draft import Context, DonorDraft, Draft, donor_task


def exact_repeat(source: SourceDocument, context: Context) -> list[Draft]:
    same = _usual(source, source.facts[0].question)
    return [_one_donor(source, same, same)]


def instruction_variant(source: SourceDocument, context: Context) -> list[Draft]:
    question = source.facts[0].question
    return [_one_donor(source, _usual(source, question), other_wording(source, source.document, question))]


def same_evidence_new_task(source: SourceDocument, context: Context) -> list[Draft]:
    donor = task_first(source, source.document, donor_task(source))
    return [_one_donor(source, donor, task_first(source, source.document, source.facts[0].question))]


def leading_evidence_new_task(source: SourceDocument, context: Context) -> list[Draft]:
    """The document leads in both prompts: an exact prefix cache covers it, and reuse beyond that is worth little."""
    donor = document_first(source, source.document, donor_task(source))
    return [_one_donor(source, donor, document_first(source, source.document, source.facts[0].question))]


def repeat_shifted(source: SourceDocument, context: Context) -> list[Draft]:
    usual = _usual(source, source.facts[0].question)
    draws = context.draws
    before = f"[session {draws.digits(8)}]\n\n"
    # Flags of a token each: over many items the shift takes every remainder of a block.
    flags = " ".join(draws.some("abcdefghijklmnop", draws.between(1, 16)))
    now = f"[session {draws.digits(8)} | resumed on workstation {draws.digits(3)} | flags {flags}]\n\n"
    return [_one_donor(source, followed_by(before, usual), followed_by(now, usual))]


def question_paraphrase(source: SourceDocument, context: Context) -> list[Draft]:
    fact = source.facts[0]
    draft = _one_donor(source, _usual(source, fact.question), _usual(source, fact.paraphrase), fact.paraphrase)
    return [draft]


def _usual(source: SourceDocument, question: str) -> Prompt:
    return question_last(source, source.document, question)


def _one_donor(source: SourceDocument, donor: Prompt, recipient: Prompt, question: str | None = None) -> Draft:
    fact = source.facts[0]
    return Draft([DonorDraft(donor, "document", source)], recipient, question or fact.question, fact.answers)
