"""A whole run: open the model, replay the items that are not done, write the result."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sembench.embedded.comparison import Divergence
from sembench.embedded.config import EmbeddedConfig
from sembench.embedded.model import EmbeddedModel
from sembench.embedded.partial import PartialResult
from sembench.embedded.replay import Replayer
from sembench.identity import identify, load_manifest
from sembench.results import build_result
from sembench.schema import InputError, ManifestItem, Result, write_atomically


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
    items = load_manifest(manifest, config.max_items)
    run = identify("embedded", manifest, len(items), seed=seed)
    assert run.manifest_sha256 is not None
    with _named(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = PartialResult(output, run.manifest_sha256, config.as_json(), run.versions, resume=resume)
    with console.status("loading the model (the first time it is fetched and unpacked, about a minute)"):
        model = EmbeddedModel.open(config)
    run = run.model_copy(update={"engine": model.describe(), "host": {**run.host, "device": model.device}})
    _replay_all(items, Replayer(model, config), partial, console)
    replays = [partial.finished[item.item_id] for item in items]
    records = [record for replay in replays for record in replay.records]
    result = build_result(run, config.as_json(), items, records, config.block_size)
    result = _with_noise_floor(result, [replay.noise_floor for replay in replays if replay.noise_floor])
    with _named(output):
        write_atomically(output, result.model_dump_json(indent=1))
        partial.remove()
    return result


@contextmanager
def _named(output: Path) -> Iterator[None]:
    """A full disk or a folder that may not be written: said with the option that named it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"--output {output}: {error.strerror or error}") from None


def _replay_all(items: Sequence[ManifestItem], replayer: Replayer, partial: PartialResult, console: Console) -> None:
    remaining = [item for item in items if item.item_id not in partial.finished]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("warming up", total=len(items), completed=len(items) - len(remaining))
        if remaining:
            replayer.warm_up()
        for item in remaining:

            def say(step: str, transform: str = item.transform) -> None:
                progress.update(task, description=f"{transform}: {step}")

            started = time.monotonic()
            replay = replayer.replay(item, say)
            with _named(partial.path):
                partial.add(replay)
            progress.advance(task)
            if not console.is_terminal:  # A log gets a line per item in place of the bar.
                done = f"{len(partial.finished)} of {len(items)}"
                console.print(f"{done}: {item.transform} ({time.monotonic() - started:.1f} s)", highlight=False)


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
