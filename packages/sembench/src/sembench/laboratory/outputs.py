"""Writes a run's folder: all of it or nothing."""

from __future__ import annotations

import csv
import datetime
import shutil
import tempfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from sembench.laboratory.plots import figures_for
from sembench.laboratory.results import BELADY, LaboratoryResult, RunFigures
from sembench.laboratory.summary import aggregate_summary, summary_of
from sembench.schema import naming, write_atomically

_NAMES = {
    "experiment": ("results.json", "metrics.csv", "summary.md"),
    "replay": ("replay_results.json", "replay_metrics.csv", "replay_summary.md"),
}
_AGGREGATED = (
    "hit_ratio",
    "byte_ratio",
    "compute_saved",
    "avg_ttft_ms",
    "ttft_gain_over_lru_percent",
    "of_the_way_to_belady",
    "tokens_saved",
    "evictions",
    "regrets",
)
OF_BELADY = ("hit_ratio", "byte_ratio", "compute_saved", "avg_ttft_ms")


def write_run(result: LaboratoryResult, parent: Path, *, plots: bool = True) -> Path:
    """``<parent>/<timestamp>_<name>``. It appears when it is complete."""
    json_name, csv_name, summary_name = _NAMES[result.kind]
    files = {
        json_name: (result.model_dump_json(indent=1) + "\n").encode(),
        csv_name: metrics_csv(result.runs).encode(),
        summary_name: summary_of(result).encode(),
    }
    files |= figures_for(result) if plots else {}
    with naming(f"--output-dir {parent}"):
        parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=parent))
        try:
            for name, data in files.items():
                (partial / name).write_bytes(data)
            partial.chmod(0o755)
            return _renamed(partial, parent / f"{_timestamp()}_{result.name}")
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def write_aggregate(results: Sequence[LaboratoryResult], parent: Path) -> list[Path]:
    """Means over the seeds: a line per experiment and policy, the optimum's figures last."""
    paths = [parent / "aggregate_summary.csv", parent / "aggregate_summary.md"]
    head = [
        "experiment",
        "semantics",
        "budget_tokens",
        "policy",
        *_AGGREGATED,
        *(f"{BELADY}_{name}" for name in OF_BELADY),
    ]
    lines = [
        [
            *(result.name, result.config["semantics"], result.budget_tokens, figures.policy),
            *(getattr(figures, name).value for name in _AGGREGATED),
            *(getattr(result.belady, name).value for name in OF_BELADY),
        ]
        for result in results
        for figures in result.policies
    ]
    with naming(f"--output-dir {parent}"):
        write_atomically(paths[0], _csv([head, *lines]))
        write_atomically(paths[1], aggregate_summary(results))
    return paths


def metrics_csv(runs: Sequence[RunFigures]) -> str:
    """A line per seed and policy; the last columns are the optimum of the same seed."""
    best = {run.seed: run for run in runs if run.policy == BELADY}
    head = [*RunFigures.model_fields, *(f"{BELADY}_{name}" for name in OF_BELADY)]
    lines = [
        [*run.model_dump().values(), *(getattr(best[run.seed], name) for name in OF_BELADY)]
        for run in runs
        if run.policy != BELADY
    ]
    return _csv([head, *lines])


def _csv(lines: Sequence[Sequence[object]]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _renamed(partial: Path, wanted: Path) -> Path:
    """Two runs within a second get folders of their own."""
    number = 1
    while True:
        target = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            if not target.exists():
                return partial.rename(target)
        except OSError:
            if not target.exists():
                raise
        number += 1


def _timestamp() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
