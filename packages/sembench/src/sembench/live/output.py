"""A replay into a result file: taken up where a stopped one left off, and refused where it shows nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from sembench.exit_codes import REFUSED_BY_FIGURES
from sembench.live.config import LiveConfig
from sembench.live.replay import OnRecord, build_live_result, replay
from sembench.partial import PartialHeader, PartialRun, partial_path
from sembench.schema import InputError, ManifestItem, Result, write_atomically


def find_leftovers(output: Path, *, resume: bool, overwrite: bool) -> bool:
    """Whether there is something to go on with."""
    if resume and overwrite:
        raise click.UsageError("--resume and --overwrite exclude each other")
    partial = partial_path(output)
    if not partial.exists():
        if resume and output.exists():
            raise InputError(f"--resume: {output} is complete; give --overwrite to run it again")
        return False
    if not resume and not overwrite:
        raise InputError(f"{partial}: left by a run that did not end; give --resume to go on or --overwrite to drop it")
    return resume


def replay_to_file(
    config: LiveConfig,
    manifest: Path,
    items: Sequence[ManifestItem],
    output: Path,
    on_record: OnRecord,
    api_key: str | None,
    *,
    resume: bool,
) -> Result:
    """The result, which is in ``output`` too. What is measured is on the disk before the next request goes out."""
    partial_file = partial_path(output)

    def open_partial(header: PartialHeader) -> PartialRun:
        return (PartialRun.resume if resume else PartialRun.begin)(partial_file, header)

    try:
        recording = asyncio.run(replay(config, manifest, items, open_partial, on_record, api_key))
    except KeyboardInterrupt:
        click.echo(f"stopped; what was measured is in {partial_file}: run again with --resume", err=True)
        raise
    result = build_live_result(config, items, recording)
    write_atomically(output, result.model_dump_json(indent=1))
    recording.partial.remove()
    return result


def refuse_empty(result: Result, output: Path) -> None:
    """Exit code 1 where no request succeeded, or a paired run has no clean pair."""
    if not result.aggregate.requests_ok:
        items = result.aggregate.items
        raise InputError(f"no request of {items} items succeeded; {output} says why", REFUSED_BY_FIGURES)
    if result.config.get("paired") and (result.paired is None or not result.paired.clean_pairs):
        raise InputError(f"no clean pair: no cold arm was proved cold; {output} says why", REFUSED_BY_FIGURES)
