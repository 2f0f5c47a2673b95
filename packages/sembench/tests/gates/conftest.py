"""Small runs with records as the replay commands write them, made into results by the real ``build_result``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Ended

from sembench.cli import main
from sembench.identity import identify
from sembench.results import build_result
from sembench.schema import DonorPrompt, ManifestItem, RequestRecord, Result

CONFIG = {
    "engine": "openai",
    "model": "m",
    "template": "completion",
    "max_output_tokens": 64,
    "concurrency": 1,
    "block_size": 16,
}
ENGINE = {"name": "vllm", "version": "0.32.0", "model": "m"}


def item(number: int, *, control: bool = False) -> ManifestItem:
    return ManifestItem(
        item_id=f"{number:016x}",
        dataset="fixture",
        source_id=f"source-{number}",
        transform="negative_control" if control else "instruction_variant",
        donor_prompts=(DonorPrompt(donor_id=f"{number + 1000:016x}", text=f"Donor {number}.", label="donor"),),
        recipient_prompt=f"Instruction. The code is {number}. What is the code?",
        input="What is the code?",
        answers=(f"code {number}",),
        negative_control=control,
    )


@dataclass
class Bench:
    """A manifest of four items and one control, and runs over it."""

    folder: Path
    items: list[ManifestItem] = field(default_factory=list)
    manifest: Path = Path()

    def __post_init__(self) -> None:
        self.items = [item(number) for number in range(4)] + [item(4, control=True)]
        self.manifest = self.write_manifest("manifest.jsonl")

    def write_manifest(self, name: str, suffix: str = "") -> Path:
        path = self.folder / name
        path.write_text("".join(f"{each.model_dump_json()}\n" for each in self.items) + suffix)
        return path

    def record(self, of: ManifestItem, arm: str, **fields: Any) -> RequestRecord:
        hit = arm == "warm" and not of.negative_control
        cold = {"proved_cold": True, "cold_proof": "0 cached tokens", "engine_cached_tokens": 0}
        known: dict[str, Any] = {
            "item_id": of.item_id,
            "arm": arm,
            "dataset": of.dataset,
            "transform": of.transform,
            "negative_control": of.negative_control,
            "request_id": f"sb-{of.item_id}-{arm}",
            "prompt_tokens": 160,
            "ttft_ms": 50.0 if hit else 102.0 if arm == "warm" else 100.0,
            "output": f"The code is {of.source_id}.",
            "quality": {"rouge_l": 0.8, "f1": 0.8, "token_recall": 1.0, "passed": True},
            "confirmed_tokens": 128 if hit else 0,
            "advertised_tokens": 128 if hit else 0,
            **(cold if arm == "cold" else {}),
        }
        return RequestRecord.model_validate({**known, **fields})

    def result(self, *arms: str, manifest: Path | None = None, **changes: Any) -> Result:
        """A run of the arms; ``changes`` are fields of every record of an arm, as cold=dict(...), warm=dict(...)."""
        path = manifest or self.manifest
        run = identify("live-gateway", path, len(self.items), engine=dict(ENGINE))
        records = [self.record(each, arm, **changes.get(arm, {})) for each in self.items for arm in arms]
        return build_result(run, dict(CONFIG), self.items, records)

    def save(self, result: Result, name: str = "result.json") -> Path:
        path = self.folder / name
        path.write_text(result.model_dump_json())
        return path


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def sembench() -> Callable[..., Ended]:
    def run(*arguments: str | Path) -> Ended:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="sembench")

    return run
