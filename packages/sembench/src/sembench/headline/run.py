"""The stages of a headline run, each of which leaves its file: what is there already is not done again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click

from sembench.headline.estimate import ServingCosts, TimeLeft, duration, measure_costs
from sembench.headline.figures import band_of
from sembench.headline.page import write_page
from sembench.identity import sha256_of
from sembench.judge import JudgeClient, KeptOpinions, judge_result
from sembench.live.config import LiveConfig
from sembench.live.noise_floor import calibrate
from sembench.live.output import find_leftovers, replay_to_file
from sembench.live.replay import describe_server, find_served
from sembench.live.streaming import RequestFailedError
from sembench.partial import partial_path
from sembench.results.gate_evidence import protocol_difference
from sembench.schema import InputError, ManifestItem, NoiseFloor, Result, read_json, write_atomically
from sembench.terminal import ProgressBars

FLOOR_REPEATS = 2


@dataclass(frozen=True)
class Files:
    folder: Path

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.jsonl"

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def floor(self) -> Path:
        return self.folder / "noise-floor.json"

    @property
    def opinions(self) -> Path:
        """What the judge has said so far."""
        return partial_path(self.folder / "judged.json")

    @property
    def page(self) -> Path:
        return self.folder / "headline.md"


def floor_items(items: Sequence[ManifestItem]) -> list[ManifestItem]:
    """One of each dataset and length."""
    first: dict[tuple[str, int], ManifestItem] = {}
    for item in items:
        first.setdefault((item.dataset, band_of(item)), item)
    return list(first.values())


@dataclass(frozen=True)
class HeadlineRun:
    config: LiveConfig
    files: Files
    items: Sequence[ManifestItem]
    skipped: Mapping[str, int]
    api_key: str | None
    judge: JudgeClient | None

    def finished(self) -> Result | None:
        """What an earlier run of the same grid, settings and server has written: its page can be made anew.

        None where a run was stopped since then, which is to go on.
        """
        if partial_path(self.files.result).exists() or not self.files.result.exists():
            return None
        result = read_json(self.files.result, Result)
        if result.run.manifest_sha256 != sha256_of(self.files.manifest):
            raise InputError(f"--resume: {self.files.result} was run on another grid; give --overwrite to run it again")
        differences = [*self._other_settings(result), *self._other_server(result)]
        if differences:
            listed = "\n  ".join(differences)
            raise InputError(
                f"--resume: {self.files.result} is of another run:\n  {listed}\n"
                "Run it as it was, give --overwrite to run it again, or choose another --output-dir."
            )
        click.echo(f"nothing is served again: {self.files.result} was finished at {result.run.finished_at}")
        return result

    def _other_settings(self, result: Result) -> Iterator[str]:
        for name, value in self.config.model_dump(mode="json").items():
            if result.config.get(name) != value:
                yield f"{name}: was {result.config.get(name)!r}, is {value!r}"

    def _other_server(self, result: Result) -> Iterator[str]:
        """By what the server says of itself now. Where it is gone, the page of its run can still be made."""
        try:
            described = asyncio.run(describe_server(self.config, self.api_key))
        except RequestFailedError as error:
            click.echo(f"note: {self.config.url} cannot be asked whether it is the same server: {error}", err=True)
            return
        for name, value in described.items():
            if result.run.engine.get(name) != value:
                yield f"server {name}: was {result.run.engine.get(name)!r}, is {value!r}"

    def estimate(self, *, noise_floor: bool, resume: bool) -> ServingCosts:
        """Measured on the server, and told before anything else is sent."""
        longest = max(int(item.metadata["estimated_tokens"]) for item in self.items)
        costs = asyncio.run(measure_costs(self.config, longest, self.api_key))
        before = self._served_before() if resume else set()
        seconds = costs.all_of([item for item in self.items if item.item_id not in before], self.config)
        if noise_floor:
            cold = (costs.arm(item, "cold", self.config) for item in floor_items(self.items))
            seconds += FLOOR_REPEATS * sum(cold)
        judged = ", and the judge's time" if self.judge else ""
        requests = len(self.items) * len(self.config.arms)
        click.echo(f"{len(self.items)} items, {requests} measured requests")
        if before:
            click.echo(f"{len(before)} of the items were served before, and are not served again")
        click.echo(f"estimate: {duration(seconds)} at most, as if nothing were reused{judged}")
        return costs

    def _served_before(self) -> set[str]:
        """Items that a stopped run has served in every arm."""
        partial = partial_path(self.files.result)
        if not partial.exists():
            return set()
        arms = find_served(partial)
        return {item_id for item_id, served in arms.items() if served >= set(self.config.arms)}

    def serve(self, costs: ServingCosts, bars: ProgressBars, *, resume: bool, overwrite: bool) -> Result:
        resume = find_leftovers(self.files.result, resume=resume, overwrite=overwrite)
        for other in (self.files.floor, self.files.opinions):
            other.unlink(missing_ok=True)  # Of another run, if it is there at all.
        progress = TimeLeft(bars, self.items, self.config, costs)
        return replay_to_file(
            self.config, self.files.manifest, self.items, self.files.result, progress, self.api_key, resume=resume
        )

    def calibrate(self, result: Result, bars: ProgressBars) -> NoiseFloor:
        if self.files.floor.exists():
            floor = read_json(self.files.floor, NoiseFloor)
            difference = protocol_difference(result, floor)
            if difference:
                raise InputError(f"{self.files.floor}: {difference}; delete the file to measure it again")
            return floor
        items = floor_items(self.items)
        advance = bars.counter("noise floor", len(items) * FLOOR_REPEATS)
        config = self.config.model_copy(update={"exact": False})
        floor = asyncio.run(
            calibrate(config, self.files.manifest, items, FLOOR_REPEATS, lambda _: advance(), self.api_key)
        )
        write_atomically(self.files.floor, floor.model_dump_json(indent=1))
        return floor

    def ask_judge(self, result: Result, bars: ProgressBars) -> Result:
        if self.judge is None or _was_asked(self.judge, result):
            return result
        kept = KeptOpinions.open(self.files.opinions, result, self.judge.identity, resume=True)
        with closing(kept):
            advance = bars.counter("judging", len(self.items))
            judged = judge_result(result, self.items, self.judge, kept, on_item=advance)
        write_atomically(self.files.result, judged.model_dump_json(indent=1))
        if not (judged.aggregate.judge or {})["failed"]:
            kept.remove()  # Otherwise a later start asks only what failed.
        return judged

    def write(self, result: Result, floor: NoiseFloor | None) -> None:
        write_atomically(self.files.page, write_page(result, self.items, floor, self.skipped))


def _was_asked(judge: JudgeClient, result: Result) -> bool:
    """Whether the result has this judge's opinions, and all of them."""
    told = result.aggregate.judge or {}
    return (told.get("model"), told.get("url")) == (judge.model, judge.url) and not told.get("failed")
