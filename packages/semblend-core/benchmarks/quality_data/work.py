"""Running the study's cases, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from quality_data.cases import Case, Cases
from quality_data.design import Cell, trials
from quality_data.measure import Subject
from quality_data.models import ModelChoice
from quality_data.records import Record
from quality_data.sources import Sources

FLOOR_CASES = 3
"""Of each cell, on which the noise of the computation itself is measured."""


@dataclass(frozen=True, slots=True)
class Job:
    cell: Cell
    number: int
    measured: frozenset[str] = frozenset()
    """Trials that an earlier run recorded."""

    @property
    def arms(self) -> list[str]:
        """What is asked of this case; a record names it, so that it is known what was done."""
        curve = self.number < self.cell.first_case + self.cell.curve_cases
        return [*self.cell.arms, *(["curve"] if curve else [])]


class Study:
    """A model, its tokenizer and the text, with the engine loaded when the first case runs."""

    def __init__(self, model: ModelChoice, folder: Path, continuation_tokens: int, *, timed: bool = True) -> None:
        self.model, self._continuation_tokens, self._timed = model, continuation_tokens, timed
        self._tokenizer = model.tokenizer()
        self._sources = Sources(folder, self._tokenizer.encode)
        self._cases: dict[int, Cases] = {}
        self._made: dict[tuple[str, int, int], list[Case]] = {}

    @cached_property
    def engine(self) -> Any:
        return self.model.engine()

    def case(self, cell: Cell, number: int) -> Case:
        key = (cell.transform, cell.prompt_tokens, cell.first_case)
        if len(self._made.get(key, ())) < cell.cases:
            self._made[key] = self.cases_of(cell.prompt_tokens).of(cell.transform, cell.first_case, cell.cases)
        return self._made[key][number - cell.first_case]

    def cases_of(self, prompt_tokens: int) -> Cases:
        tokenizer = self._tokenizer
        fresh = Cases(self._sources, tokenizer.encode, tokenizer.decode, prompt_tokens)
        return self._cases.setdefault(prompt_tokens, fresh)

    def run(self, job: Job) -> Record:
        """All trials of one case that are not measured yet."""
        cell, case = job.cell, self.case(job.cell, job.number)
        record: Record = {
            "model": self.model.name,
            "cell": cell.name,
            "transform": cell.transform,
            "prompt_tokens": cell.prompt_tokens,
            "continuation_tokens": self._continuation_tokens,
            "number": job.number,
            "arms": job.arms,
            "trials": {},
        }
        if len(case.recipient) + self._continuation_tokens + 8 > self.engine.max_tokens:
            return record | {"too_long": True}
        subject = Subject(self.engine, case, self._continuation_tokens, self._tokenizer.decode)
        record |= {"cold_answer": subject.cold_answer, "cold_said": subject.cold_said, "judge": case.judge}
        record |= {"cold_seconds": subject.cold.seconds}
        if job.number < cell.first_case + FLOOR_CASES:
            record["floor"], record["fp8_floor"] = subject.floor(), subject.fp8_floor()
        if subject.plan is None:
            return record  # Discovery found nothing worth loading: a cold prefill, exact by definition.
        record["spans"] = len(subject.plan.spans)
        record["layer_deviation"] = subject.layer_deviation()
        for trial in trials(cell, subject.plan, job.number):
            if trial.key not in job.measured:
                measured, logit_error = subject.measure(
                    trial.policy,
                    trial.budget,
                    whole_steps=trial.whole_steps,
                    run=trial.run,
                    answer=trial.answer,
                    timed=self._timed,
                )
                record["trials"][trial.key] = asdict(measured)
                if trial.key == "full_recompute@1":
                    record["full_recompute_max_abs"] = logit_error
        return record


def open_jobs(cells: Sequence[Cell], known: Mapping[tuple[str, int], Record]) -> list[Job]:
    """What is left to do, the first cases of all cells first. ``known``: records by cell and number."""
    jobs = []
    for cell in cells:
        for number in range(cell.first_case, cell.first_case + cell.cases):
            record = known.get((cell.name, number))
            job = Job(cell, number, frozenset(record["trials"] if record else ()))
            if record is None or not set(job.arms) <= set(record["arms"]):
                jobs.append(job)
    return sorted(jobs, key=lambda job: job.number)


def run_all(
    model: ModelChoice,
    folder: Path,
    continuation_tokens: int,
    jobs: Sequence[Job],
    workers: int,
    say: Callable[[str], None],
) -> Iterator[Record]:
    """A record per job, in any order."""
    if workers == 1:
        study = Study(model, folder, continuation_tokens)
        for done, job in enumerate(jobs, 1):
            record = study.run(job)
            say(f"{done} of {len(jobs)}: {job.cell.name} {job.number}")
            yield record
        return
    context = multiprocessing.get_context("spawn")
    # An executor, not a Pool: one whose workers cannot start fails instead of starting them for ever.
    with ProcessPoolExecutor(workers, context, _start, (model, folder, continuation_tokens, workers)) as pool:
        for done, future in enumerate(as_completed([pool.submit(_run, job) for job in jobs]), 1):
            if done % 10 == 0 or done == len(jobs):
                say(f"{done} of {len(jobs)} cases")
            yield future.result()


_study: Study


def _start(model: ModelChoice, folder: Path, continuation_tokens: int, workers: int) -> None:
    global _study
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    _study = Study(model, folder, continuation_tokens, timed=False)


def _run(job: Job) -> Record:
    return _study.run(job)
