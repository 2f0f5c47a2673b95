"""Manifests and folders that several tests look at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sembench.cli import main
from sembench.manifests import build_fixture, build_synthetic
from sembench.schema import ManifestItem

_TOWNS = ("Bergen", "Lagos", "Quito", "Osaka", "Tunis", "Perth")


@pytest.fixture
def sembench() -> Callable[..., Result]:
    """Runs the command line as a user would."""
    return lambda *words: CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="session")
def fixture_items() -> list[ManifestItem]:
    return build_fixture()


@pytest.fixture(scope="session")
def synthetic_items() -> list[ManifestItem]:
    """Two documents of each domain at each of two lengths, with every transform."""
    return build_synthetic(seed=11, bands_tokens=(1_200, 2_400), sources_per_band=2)


def _context(dataset: str, row: int) -> str:
    """Paragraphs that no other row has, one of which names the harbour master."""
    paragraphs = [
        f"In {dataset} volume {row * 31 + n} the town of {_TOWNS[(row + n) % 6]} counted {row * 7919 + n * 613} ships, "
        f"of which {n * 17 + row} carried salt and {n + row * 3} carried timber to warehouse {row * 100 + n}. "
        f"The clerk {dataset}-{row}-{n} signed the page and closed the ledger at {n % 24} o'clock."
        for n in range(12)
    ]
    paragraphs[7] += f" The harbour master of that year was Captain Maren Holt{row}."
    return "\n\n".join(paragraphs)


@pytest.fixture
def longbench_folder(tmp_path: Path) -> Path:
    """Three datasets in LongBench's v1 format; hotpotqa and musique are over one encyclopedia."""
    folder = tmp_path / "longbench"
    folder.mkdir()
    for dataset in ("qasper", "hotpotqa", "musique"):
        rows = [
            {
                "_id": f"{dataset}-{row}",
                "input": "Who was the harbour master of that year?",
                "context": _context(dataset, row),
                "answers": [f"Captain Maren Holt{row}"],
                "length": 500,
                "dataset": dataset,
                "language": "en",
                "all_classes": None,
            }
            for row in range(4)
        ]
        (folder / f"{dataset}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture
def v2_row() -> dict[str, Any]:
    return {
        "_id": "v2-0",
        "domain": "Single-Document QA",
        "sub_domain": "Legal",
        "difficulty": "easy",
        "length": "short",
        "question": "Who was the harbour master?",
        "choice_A": "Captain Maren Holt0",
        "choice_B": "nobody at all",
        "choice_C": "a stranger",
        "choice_D": "the clerk",
        "answer": "A",
        "context": _context("v2", 0),
    }
