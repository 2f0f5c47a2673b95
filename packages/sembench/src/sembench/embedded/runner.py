"""A whole run: open the model, replay the items that are not done, write the result."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sembench.embedded.comparison import Divergence
from sembench.embedded.config import EmbeddedConfig, make_chooser
from sembench.embedded.model import EmbeddedModel
from sembench.embedded.replay import FinishedItem, Replayer
from sembench.identity import identify, load_manifest
from sembench.partial import PartialHeader, PartialRun, holds_work, partial_path
from sembench.results import build_result
from sembench.schema import InputError, ManifestItem, Result, naming, write_atomically
from sembench.terminal import ProgressBars


def run_embedded(
    manifest: Path,
    output: Path,
    config: EmbeddedConfig,
    *,
    resume: bool = False,
    seed: int | None = None,
    console: Console | None = None,
) -> Result:
    """Replay ``manifest`` and write the result to ``output``. A run that was stopped goes on with ``resume``."""
    console = console or Console(stderr=True)
    choose = make_chooser(config)  # A policy that there is not is refused before the model is loaded.
    items = load_manifest(manifest, config.max_items)
    run = identify("embedded", manifest, len(items), seed=seed)
    header = PartialHeader(run=run, fixed={"config": config.as_json(), "versions": run.versions})
    with naming(f"--output {output}"):
        output.parent.mkdir(parents=True, exist_ok=True)
        taken_up = _take_up(partial_path(output), header, resume)
    with console.status("loading the model (the first time it is fetched and unpacked, about a minute)"):
        model = EmbeddedModel.open(config)
    run = run.model_copy(update={"engine": model.describe(), "host": {**run.host, "device": model.device}})
    with naming(f"--output {output}"):
        partial = taken_up or PartialRun.begin(partial_path(output), header)
    finished = _replay_all(items, Replayer(model, config, choose), partial, console)
    replays = [finished[item.item_id] for item in items]
    records = [record for replay in replays for record in replay.records]
    result = build_result(run, config.as_json(), items, records, config.block_size)
    result = _with_noise_floor(result, [replay.noise_floor for replay in replays if replay.noise_floor])
    with naming(f"--output {output}"):
        write_atomically(output, result.model_dump_json(indent=1))
        partial.remove()
    return result


def _take_up(path: Path, header: PartialHeader, resume: bool) -> PartialRun | None:
    """What an earlier run left, asked before the model is loaded."""
    if resume and path.exists():
        return PartialRun.resume(path, header)
    if holds_work(path):
        raise InputError(f"{path}: left by a run that did not end; give --resume to go on, or delete the file")
    return None


def _replay_all(
    items: Sequence[ManifestItem], replayer: Replayer, partial: PartialRun, console: Console
) -> dict[str, FinishedItem]:
    """All items by their id: those that the partial run holds, and the others replayed."""
    finished = {item.item_id: item for item in (line.parse(FinishedItem) for line in partial.lines)}
    remaining = [item for item in items if item.item_id not in finished]
    with ProgressBars(console) as bars:
        bars.show("items", len(finished), len(items), "warming up")
        if remaining:
            replayer.warm_up()
        for item in remaining:

            def say(step: str, transform: str = item.transform) -> None:
                bars.show("items", len(finished), len(items), f"{transform}: {step}")

            started = time.monotonic()
            replay = replayer.replay(item, say)
            with naming(f"--output {partial.path}"):
                partial.append(replay.model_dump(mode="json"))
            finished[item.item_id] = replay
            bars.log(f"{len(finished)} of {len(items)}: {item.transform} ({time.monotonic() - started:.1f} s)")
    return finished


def _with_noise_floor(result: Result, floors: Sequence[Divergence]) -> Result:
    """Over all items for which it was measured: means, and the largest of the largest."""
    if not floors or result.paired is None:
        return result
    floor: dict[str, float | None] = {
        "kl_mean": statistics.fmean(floor.kl_mean for floor in floors),
        "kl_max": max(floor.kl_max for floor in floors),
        "ppl_ratio": statistics.fmean(floor.ppl_ratio for floor in floors),
        "top1": statistics.fmean(floor.top1 for floor in floors),
        "n": len(floors),
    }
    return result.model_copy(update={"paired": result.paired.model_copy(update={"noise_floor": floor})})
