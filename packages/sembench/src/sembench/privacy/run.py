"""A whole run: every question behind every donor in every arm. The result is on disk after each question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sembench.identity import now
from sembench.privacy.arms import PrivacyArm
from sembench.privacy.figures import PrivacyFigures, Readings, summarize
from sembench.privacy.trials import Bench, Question, Trial
from sembench.schema import Aggregate, Result, RunIdentity, naming, write_atomically
from sembench.terminal import ProgressBars


@dataclass
class PrivacyRun:
    bench: Bench
    arms: Sequence[PrivacyArm]
    questions: Sequence[Question]
    identity: RunIdentity
    config: dict[str, Any]
    _readings: dict[tuple[str, str], list[Readings]] = field(default_factory=dict)
    """By transform and arm."""

    def measure(self, output: Path, bars: ProgressBars) -> Result:
        result = self._result()
        for done, question in enumerate(self.questions, 1):
            self._read(question, bars)
            result = self._result()
            with naming(f"--output {output}"):
                write_atomically(output, result.model_dump_json(indent=1))
            bars.log(f"{done} of {len(self.questions)}: {question.transform}, {question.source}")
        return result

    def _read(self, question: Question, bars: ProgressBars) -> None:
        """Donor by donor, so that an engine which keeps their KV computes each once."""
        total = len(question.trials) * len(self.questions)
        before = self.questions.index(question) * len(question.trials)
        cold = self.bench.read_cold(question)
        behind = []
        for number, trial in enumerate(question.trials):
            bars.show("trials", before + number, total, f"{question.transform}, {question.source}")
            behind.append([self.bench.read(question, trial, arm) for arm in self.arms])
        for place, arm in enumerate(self.arms):
            readings = Readings(question, cold, tuple(row[place] for row in behind))
            self._readings.setdefault((question.transform, arm.name), []).append(readings)

    def _result(self) -> Result:
        figures = self.figures()
        return Result(
            run=self.identity.model_copy(update={"finished_at": now()}),
            config=self.config,
            aggregate=Aggregate(
                items=len(_trials(self.questions)), requests_ok=sum(one.trials for one in figures), requests_failed=0
            ),
            privacy=[one.model_dump(mode="json") for one in figures],
        )

    def figures(self) -> list[PrivacyFigures]:
        arms = {arm.name: arm for arm in self.arms}
        return [summarize(arms[name], readings) for (_, name), readings in self._readings.items()]


def _trials(questions: Sequence[Question]) -> list[Trial]:
    return [trial for question in questions for trial in question.trials]
