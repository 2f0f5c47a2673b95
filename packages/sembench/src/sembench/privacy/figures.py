"""From log-probabilities to the rank of what the donor's opening said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from sembench.privacy.arms import PrivacyArm
from sembench.privacy.trials import Question, Reading
from sembench.schema import Interval, Rate
from sembench.statistics import bootstrap_mean, mean

Matrix = NDArray[np.float64]


class PrivacyFigures(BaseModel):
    """One transform in one arm. Ranks begin at 0; ties count as half."""

    model_config = ConfigDict(extra="forbid")

    transform: str
    arm: str
    sharing: str
    salts: str
    donors: str
    tier: str
    policy: str | None
    budget: float | None
    trials: int
    sources: int
    candidates: int
    chance_rank: float
    mean_rank: Interval
    """Of what was told, among all candidates, by how much more likely it is than behind the other donors."""
    ranked_first: Rate
    cold_rank: Interval
    """The same by how much more likely it is than cold: who asks needs no other donors to compare with."""
    cold_ranked_first: Rate
    gain_nats: Interval
    """How far its log-probability is above the mean of it behind all donors of the document."""
    shift_nats: Interval
    """How far its log-probability moved against cold."""
    named: Rate | None
    """Greedy answers that name it."""
    named_cold: Rate | None
    reused_tokens: float | None
    """Mean over trials."""
    outcomes: dict[str, int]
    ranks: list[float]
    """Of every trial, in the manifest's order."""


@dataclass(frozen=True)
class Readings:
    """Of one question: cold, and behind each of its donors."""

    question: Question
    cold: Reading
    behind: tuple[Reading, ...]

    @property
    def told(self) -> list[int]:
        return [trial.told for trial in self.question.trials]

    def shifts(self) -> Matrix:
        """[trial, candidate] log-probability behind that trial's donor, minus cold."""
        found = np.array([reading.log_probs for reading in self.behind], dtype=np.float64)
        return found - np.array(self.cold.log_probs, dtype=np.float64)

    def named(self) -> list[bool | None]:
        """Whether the answer names what its donor told; None where no answer was asked for."""
        return [
            _names(read.answer, self.question.candidates[n]) for read, n in zip(self.behind, self.told, strict=True)
        ]

    def named_cold(self) -> list[bool | None]:
        return [_names(self.cold.answer, self.question.candidates[n]) for n in self.told]


def summarize(arm: PrivacyArm, readings: Sequence[Readings]) -> PrivacyFigures:
    """All questions of one transform in one arm."""
    first = readings[0].question
    gains = [_against_all_donors(read.shifts()) for read in readings]
    among_donors = [rank_told(gain, read.told) for gain, read in zip(gains, readings, strict=True)]
    against_cold = [rank_told(read.shifts(), read.told) for read in readings]
    ranks = [rank for part in among_donors for rank in part]
    behind = [reading for read in readings for reading in read.behind]
    reused = [reading.reused_tokens for reading in behind if reading.reused_tokens is not None]
    return PrivacyFigures(
        transform=first.transform,
        arm=arm.name,
        **{name: value for name, value in arm.as_json().items() if name not in ("name", "reuse")},
        trials=len(ranks),
        sources=len(readings),
        candidates=len(first.candidates),
        chance_rank=(len(first.candidates) - 1) / 2,
        mean_rank=bootstrap_mean(among_donors),
        ranked_first=_first(among_donors),
        cold_rank=bootstrap_mean(against_cold),
        cold_ranked_first=_first(against_cold),
        gain_nats=bootstrap_mean([_of_told(gain, read.told) for gain, read in zip(gains, readings, strict=True)]),
        shift_nats=bootstrap_mean([_of_told(read.shifts(), read.told) for read in readings]),
        named=_named(verdict for read in readings for verdict in read.named()),
        named_cold=_named(verdict for read in readings for verdict in read.named_cold()),
        reused_tokens=mean(reused),
        outcomes=dict(Counter(reading.outcome for reading in behind if reading.outcome)),
        ranks=ranks,
    )


def rank_told(scores: Matrix, told: Sequence[int]) -> list[float]:
    """For each row, how many candidates score above the one that was told; those that tie count as half."""
    ranks = []
    for row, own in zip(scores, told, strict=True):
        ties = int((row == row[own]).sum()) - 1
        ranks.append(float((row > row[own]).sum()) + 0.5 * ties)
    return ranks


def _of_told(scores: Matrix, told: Sequence[int]) -> list[float]:
    return [float(row[own]) for row, own in zip(scores, told, strict=True)]


def _against_all_donors(shifts: Matrix) -> Matrix:
    """What all donors of a document do to a candidate alike says nothing of any of them."""
    alike: Matrix = shifts.mean(axis=0, keepdims=True)
    return shifts - alike


def _first(ranks: Sequence[Sequence[float]]) -> Rate:
    flat = [rank for part in ranks for rank in part]
    return Rate.of(sum(rank == 0 for rank in flat), len(flat))


def _named(verdicts: Iterable[bool | None]) -> Rate | None:
    known = [verdict for verdict in verdicts if verdict is not None]
    return Rate.of(sum(known), len(known)) if known else None


def _names(answer: str | None, candidate: str) -> bool | None:
    return None if answer is None else candidate.strip() in answer
