"""The items of a manifest as trials: one question, and the donors that may each have told its answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sembench.privacy.arms import PrivacyArm
from sembench.schema import PRIVACY_TRANSFORMS, InputError, ManifestItem


@dataclass(frozen=True)
class Trial:
    """One donor, and what its opening said."""

    item_id: str
    told: int
    """Which of the candidates."""
    donor: str
    document: str
    """What the donor shares with the question's prompt: served by itself, it says nothing of the opening."""

    def donor_of(self, arm: PrivacyArm) -> str:
        return self.donor if arm.donors == "as_sent" else self.document


@dataclass(frozen=True)
class Question:
    """One prompt, the same for all its trials, which names no candidate."""

    transform: str
    source: str
    prompt: str
    candidates: tuple[str, ...]
    """Each begins with a blank: it goes on from the prompt's last word."""
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Reading:
    """What the client who asked was given."""

    log_probs: tuple[float, ...]
    """Of each candidate's first token, as the first of the answer."""
    answer: str | None = None
    """Greedy; None where it was not asked for."""
    reused_tokens: int | None = None
    """What the engine did not compute."""
    outcome: str | None = None


class Bench(Protocol):
    """An engine that serves donors and questions."""

    def read_cold(self, question: Question) -> Reading:
        """With nothing served before."""

    def read(self, question: Question, trial: Trial, arm: PrivacyArm) -> Reading:
        """After the trial's donor, as the arm says. Trials do not see each other's donors."""


def group_trials(items: Iterable[ManifestItem]) -> list[Question]:
    """Other transforms are left out. At least one question must be there."""
    grouped: dict[tuple[str, str, str], list[ManifestItem]] = {}
    for item in items:
        if item.transform in PRIVACY_TRANSFORMS:
            grouped.setdefault((item.transform, item.dataset, item.source_id), []).append(item)
    if not grouped:
        raise InputError(
            "the manifest holds no item of private_preamble or planted_context: write one with sembench build "
            "--transforms private_preamble planted_context"
        )
    return [_question(members) for members in grouped.values()]


def _question(items: Sequence[ManifestItem]) -> Question:
    first = items[0]
    candidates = first.metadata.get("candidates")
    if not isinstance(candidates, list) or any(item.recipient_prompt != first.recipient_prompt for item in items):
        raise InputError(f"item {first.item_id}: its source's items need one recipient and one list of candidates")
    return Question(
        transform=first.transform,
        source=f"{first.dataset}/{first.source_id}",
        prompt=first.recipient_prompt,
        candidates=tuple(f" {candidate}" for candidate in candidates),
        trials=tuple(_trial(item, candidates) for item in items),
    )


def _trial(item: ManifestItem, candidates: list[str]) -> Trial:
    donor = item.donor_prompts[0]
    try:
        told = candidates.index(item.metadata["told"])
        start, end = donor.metadata["evidence_spans"][0]
    except (KeyError, ValueError, IndexError, TypeError):
        raise InputError(f"item {item.item_id}: metadata: needs told, candidates and evidence_spans") from None
    return Trial(item.item_id, told, donor.text, donor.text[start:end])


def check_first_tokens(question: Question, tokens: list[int]) -> list[int]:
    """Refused where two candidates begin alike: their log-probabilities could not be told apart."""
    if len(set(tokens)) < len(tokens):
        raise InputError(f"{question.source}: two of the candidates begin with the same token in this vocabulary")
    return tokens
