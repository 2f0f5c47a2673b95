"""Finished items of a run that has not ended: one line each, so that a killed run goes on where it was."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from sembench.embedded.comparison import Divergence
from sembench.embedded.replay import ItemReplay
from sembench.schema import InputError, RequestRecord

Model = TypeVar("Model", bound=BaseModel)


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.partial-embedded.v1"] = "sembench.partial-embedded.v1"
    manifest_sha256: str
    config: dict[str, Any]
    versions: dict[str, str]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    item_id: str
    records: list[RequestRecord]
    noise_floor: dict[str, float] | None


def partial_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial.jsonl")


class PartialResult:
    """``<output>.partial.jsonl``: a header that says what the run is, then a line per finished item."""

    def __init__(
        self, output: Path, manifest_sha256: str, config: dict[str, Any], versions: dict[str, str], *, resume: bool
    ) -> None:
        self.path = partial_path(output)
        self._header = _Header(manifest_sha256=manifest_sha256, config=config, versions=versions)
        self.finished: dict[str, ItemReplay] = {}
        if not self.path.exists():
            return
        if resume:
            self._read()
        elif self.path.read_bytes().count(b"\n") > 1:
            raise InputError(
                f"{self.path} holds the finished items of an interrupted run: "
                "go on from there with --resume, or delete the file"
            )

    def add(self, replay: ItemReplay) -> None:
        """On disk before it counts as finished."""
        floor = asdict(replay.noise_floor) if replay.noise_floor else None
        if not self.finished:
            self._start()
        line = _Line(item_id=replay.item_id, records=replay.records, noise_floor=floor)
        self._append(line.model_dump_json())
        self.finished[replay.item_id] = replay

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._append(self._header.model_dump_json())

    def _append(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):  # The writer was killed in the middle of a line.
            os.truncate(self.path, len(whole))
        lines = whole.splitlines()
        if not lines:
            return
        self._check_header(_parsed(lines[0], _Header, f"{self.path}:1"))
        for number, text in enumerate(lines[1:], 2):
            line = _parsed(text, _Line, f"{self.path}:{number}")
            floor = Divergence(**line.noise_floor) if line.noise_floor else None
            self.finished[line.item_id] = ItemReplay(line.item_id, line.records, floor)

    def _check_header(self, found: _Header) -> None:
        if found.manifest_sha256 != self._header.manifest_sha256:
            raise InputError(
                f"{self.path}: belongs to another manifest: delete it, or pass the manifest it was made of"
            )
        for part in ("config", "versions"):
            theirs, ours = getattr(found, part), getattr(self._header, part)
            different = sorted(name for name in {*theirs, *ours} if theirs.get(name) != ours.get(name))
            if different:
                name = different[0]
                raise InputError(
                    f"{self.path}: was made with {name} = {theirs.get(name)!r}, this run has {ours.get(name)!r}: "
                    "resume with the same options and versions, or delete the file"
                )


def _parsed(text: bytes, model: type[Model], where: str) -> Model:
    try:
        return model.model_validate(json.loads(text))
    except ValueError as error:
        problem = str(error).splitlines()[0]
        raise InputError(f"{where}: no line of a partial result ({problem}): delete the file to start over") from None
