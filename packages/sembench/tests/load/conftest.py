"""A manifest to draw from, and servers whose timing and faults are known."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sembench.schema import DonorPrompt, ManifestItem


def _id(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _item(number: int, *, control: bool = False) -> ManifestItem:
    words = random.Random(number).choices([f"word{n}" for n in range(400)], k=120)
    document = " ".join(words)
    return ManifestItem(
        item_id=_id(number),
        dataset="test",
        source_id=str(number),
        transform="negative_control" if control else "instruction_variant",
        donor_prompts=(DonorPrompt(donor_id=_id(number, "donor"), text=f"Read this. {document}", label="donor"),),
        recipient_prompt=f"Act on this. {document}",
        input="What is it?",
        answers=(),
        negative_control=control,
    )


@pytest.fixture
def items() -> list[ManifestItem]:
    """Five recipients, and a control that may not be drawn."""
    return [*(_item(number) for number in range(5)), _item(99, control=True)]


@pytest.fixture
def manifest(tmp_path: Path, items: list[ManifestItem]) -> Path:
    path = tmp_path / "manifest.jsonl"
    path.write_text("".join(item.model_dump_json() + "\n" for item in items))
    return path


class StubProcess:
    """The stub in a process of its own."""

    def __init__(self, *options: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sembench.load.stub", *map(str, options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self._counted: dict[str, int] | None = None

    def stop(self) -> dict[str, int]:
        """What it counted; nothing where it died before."""
        if self._counted is None:
            output, _ = self._process.communicate(timeout=30)
            self._counted = json.loads(output) if output.strip() else {}
        return self._counted


@pytest.fixture
def stub() -> Iterator[Callable[..., StubProcess]]:
    started: list[StubProcess] = []

    def start(*options: object) -> StubProcess:
        started.append(StubProcess(*options))
        return started[-1]

    yield start
    for process in started:
        process.stop()
