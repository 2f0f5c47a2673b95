"""Results in a folder, for a run that may be broken off: a file for each, beside the options they were made with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from semblend_core.testing.benchmarks.script import as_text

MADE_WITH = "options.json"
NOT_OF_RESULTS = ("out", "resume", "json")
"""Options that change no result."""


def why_not_here(options: argparse.Namespace) -> str | None:
    """Why ``--out`` cannot take these results, or give those of an earlier run."""
    if options.out is None:
        return "--resume needs the --out of the run that was broken off" if options.resume else None
    if not any(options.out.glob("*.json")):
        return None
    made_with = options.out / MADE_WITH
    if not made_with.exists():
        return f"--out {options.out}: it does not say what its results were made with, name another folder"
    then, now = json.loads(made_with.read_text()), _of_results(options)
    if then != now:
        changed = ", ".join(
            f"--{name.replace('_', '-')} {then.get(name)}"
            for name in {**then, **now}
            if then.get(name) != now.get(name)
        )
        return f"--out {options.out}: its results were made with {changed}; give the same, or name another folder"
    return None


def note_options(options: argparse.Namespace) -> None:
    if options.out is not None:
        options.out.mkdir(exist_ok=True)
        (options.out / MADE_WITH).write_text(json.dumps(_of_results(options)) + "\n")


def earlier(options: argparse.Namespace, names: list[str]) -> list[str]:
    """What an earlier run has written to these files: all of them, or none."""
    files = [Path(options.out, name) for name in names] if options.out is not None and options.resume else []
    return [file.read_text() for file in files] if all(map(Path.exists, files)) else []


def keep(options: argparse.Namespace, name: str, result: str) -> None:
    if options.out is not None:
        (options.out / name).write_text(result + "\n")


def _of_results(options: argparse.Namespace) -> dict[str, str]:
    return {name: value for name, value in as_text(options).items() if name not in NOT_OF_RESULTS}
