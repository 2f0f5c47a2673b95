"""Running the study's cases, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from quality_data.cases import Case, Cases
from quality_data.design import Extent, trials
from quality_data.measure import Subject
from quality_data.sources import Sources
from semblend_core.reference import ReferenceEngine, load_default_tokenizer

Record = dict[str, Any]


class Texts:
    """The tokenizer and the cases it makes of a data folder."""

    def __init__(self, folder: Path, prompt_tokens: int) -> None:
        self._tokenizer = load_default_tokenizer()
        self.cases = Cases(Sources(folder, self.encode), self.encode, self.decode, prompt_tokens)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Any) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)


def run_case(engine: ReferenceEngine, texts: Texts, case: Case, number: int, extent: Extent, *, timed: bool) -> Record:
    """All trials of one case; ``timed`` says whether their times mean anything."""
    subject = Subject(engine, case, extent.continuation_tokens, texts.decode)
    record: Record = {"transform": case.transform, "number": number, "trials": {}}
    if number < extent.curve_cases:
        record["floor"], record["fp8_floor"] = subject.floor(), subject.fp8_floor()
    if subject.plan is None:
        return record  # Discovery found nothing worth loading: a cold prefill, exact by definition.
    record["spans"] = len(subject.plan.spans)
    record["layer_deviation"] = subject.layer_deviation()
    for trial in trials(case.transform, subject.plan, number, extent):
        measured, logit_error = subject.measure(trial.policy, trial.budget, answer=trial.answer, timed=timed)
        record["trials"][trial.key] = asdict(measured)
        if trial.label == "full_recompute":
            record["full_recompute_max_abs"] = logit_error
    return record


def run_all(
    folder: Path,
    extent: Extent,
    device: str,
    workers: int,
    say: Callable[[str], None],
    known: Collection[tuple[str, int]] = (),
) -> Iterator[Record]:
    """A record per case that is not ``known``, in any order."""
    jobs = [(transform, number) for transform in extent.transforms for number in range(extent.cases_of(transform))]
    jobs = sorted((job for job in jobs if job not in known), key=lambda job: job[1])
    if workers == 1:
        worker = _Worker(folder, extent, device, workers)
        for done, job in enumerate(jobs, 1):
            record = worker.run(job)
            say(f"{done} of {len(jobs)}: {job[0]} {job[1] + 1}")
            yield record
        return
    context = multiprocessing.get_context("spawn")
    # An executor, not a Pool: one whose workers cannot start fails instead of starting them for ever.
    with ProcessPoolExecutor(workers, context, _start, (folder, extent, device, workers)) as pool:
        for done, future in enumerate(as_completed([pool.submit(_run, job) for job in jobs]), 1):
            if done % 20 == 0 or done == len(jobs):
                say(f"{done} of {len(jobs)} cases")
            yield future.result()


class _Worker:
    def __init__(self, folder: Path, extent: Extent, device: str, workers: int) -> None:
        if workers > 1:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
        self._timed = workers == 1
        self._texts = Texts(folder, extent.prompt_tokens)
        self._engine = ReferenceEngine.load(device=device)
        self._extent = extent
        self._cases = {name: self._texts.cases.of(name, extent.cases_of(name)) for name in extent.transforms}

    def run(self, job: tuple[str, int]) -> Record:
        transform, number = job
        return run_case(
            self._engine, self._texts, self._cases[transform][number], number, self._extent, timed=self._timed
        )


_worker: _Worker


def _start(folder: Path, extent: Extent, device: str, workers: int) -> None:
    global _worker
    _worker = _Worker(folder, extent, device, workers)


def _run(job: tuple[str, int]) -> Record:
    return _worker.run(job)
