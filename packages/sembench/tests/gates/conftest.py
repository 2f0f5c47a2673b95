"""Small runs with records as the replay commands write them, made into results by the real ``build_result``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Ended

from sembench.cli import main
from sembench.engine_events import summarize
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
GATES = (
    *("--min-backend-confirmed-block-rate", "0.05", "--min-materialization-events", "1"),
    *("--min-materialized-tokens", "512", "--max-negative-control-confirmed-rate", "0.0"),
    "--require-materialized-reuse",
    "--require-no-engine-errors",
)
"""The published ones on reuse."""
Event = tuple[str, str, dict[str, Any]]
"""A name, the id that the client sent, and the event's own fields."""
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


class Logged:
    """Writes what engines tell of a run."""

    def sent(self, number: int, role: str = "warm", run: str = "12ab34cd") -> str:
        """An id as the replay sends it."""
        return f"sb-{run}-{number:016x}-{role}-001"

    def audit(self, path: Path, *events: Event, at: float | None = None) -> Path:
        """Records as vLLM's adapter writes them."""
        with path.open("w") as stream:
            for name, client, fields in events:
                envelope = {"schema": "semblend.audit.v1", "event": name, "time": at or time.time(), "engine": "vllm"}
                ids = {"request_id": f"cmpl-{client}-0-1a2b3c4d", "client_request_id": client, "namespace": None}
                stream.write(json.dumps({**envelope, **ids, **fields}) + "\n")
        return path

    def landed(self, client: str, tokens: int) -> list[Event]:
        return [("lookup", client, {"reason": None, "spans": 1}), ("materialized", client, {"tokens": tokens})]

    def declined(self, client: str, reason: str) -> list[Event]:
        return [
            ("lookup", client, {"reason": reason, "spans": 0}),
            ("declined", client, {"reason": reason, "stage": "lookup"}),
        ]

    def reused(self, tokens: int = 128, run: str = "12ab34cd", control: int = 0) -> list[Event]:
        """Four requests with so many tokens each; the control finds nothing, or so many."""
        events = [event for number in range(4) for event in self.landed(self.sent(number, run=run), tokens)]
        name = self.sent(4, run=run)
        return events + (self.landed(name, control) if control else self.declined(name, "no_spans"))

    def text_log(self, path: Path, *, run: str = "12ab34cd", tokens: int = 128, upto: int = 4) -> Path:
        """Another system's log. It has no word for requests that found nothing."""
        lines = ["INFO engine started"]
        for number in range(5):
            lines.append(
                f"INFO SemBlend donor registered request_id=cmpl-{self.sent(number, 'donor0', run)}-0 tokens=150"
            )
            if number < upto:
                lines.append(
                    f"INFO SemBlend materialized request_id=cmpl-{self.sent(number, run=run)}-0 tokens={tokens}"
                )
        path.write_text("\n".join(lines) + "\n")
        return path


@pytest.fixture
def logged() -> Logged:
    return Logged()


@pytest.fixture
def replayed(bench: Bench, logged: Logged) -> Result:
    """A live run without an audit stream: four items and a control."""
    result = bench.result("warm", warm={"confirmed_tokens": None, "advertised_tokens": None})
    for number, record in enumerate(result.requests):
        record.request_id = logged.sent(number)
    return Result.model_validate(result.model_dump())


@pytest.fixture
def judged(bench: Bench, sembench: Callable[..., Ended], tmp_path: Path) -> Callable[..., Ended]:
    """Holds a result against the published gates, with a summary of each log."""

    def judge(result: Result, logs: dict[str, Path], *more: str | Path) -> Ended:
        summaries = []
        for number, (engine, path) in enumerate(logs.items()):
            summaries.append(tmp_path / f"{number}-{engine}-events.json")
            summaries[-1].write_text(summarize(engine.partition(" ")[0], [path]).model_dump_json())
        named = ("--engine-summary", *summaries) if summaries else ()
        return sembench("assert-result-gates", "--result", bench.save(result), *named, *GATES, *more)

    return judge
