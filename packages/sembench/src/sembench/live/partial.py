"""Finished records on disk while a run goes on, so that a killed one can be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sembench.schema import InputError, RequestRecord, RunIdentity, write_atomically

Key = tuple[str, str]
"""Item and arm."""


class PartialHeader(BaseModel):
    """The first line: what the run is. A run with another one must not be mixed in."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.live-partial.v1"] = "sembench.live-partial.v1"
    run: RunIdentity
    config: dict[str, Any]
    server: dict[str, Any]
    """Version, model and abilities, as the preflight found them."""


class Partial:
    """Appends records; each is on the disk when ``append`` returns."""

    def __init__(self, path: Path, header: PartialHeader, records: Mapping[Key, RequestRecord], resumed: int) -> None:
        self.path = path
        self.header = header
        self.records = dict(records)
        self.resumed = resumed
        """How often the run was taken up again."""
        self._file = path.open("ab")

    @classmethod
    def begin(cls, path: Path, header: PartialHeader) -> Partial:
        write_atomically(path, header.model_dump_json() + "\n")
        return cls(path, header, {}, 0)

    @classmethod
    def resume(cls, path: Path, header: PartialHeader) -> Partial:
        """Take up what is there. Refused where ``header`` is of another run; a torn last line is cut off."""
        before, lines, whole_bytes = _read(path)
        _refuse_differences(path, before, header)
        os.truncate(path, whole_bytes)
        records: dict[Key, RequestRecord] = {}
        resumed = 1
        for place, line in lines:
            resumed += "resumed" in line
            _take(records, line, place)
        partial = cls(path, before, records, resumed)
        partial._write({"resumed": resumed})
        return partial

    def append(self, record: RequestRecord) -> None:
        self.records[(record.item_id, record.arm)] = record
        self._write({"record": record.model_dump(mode="json")})

    def forget(self, items: Iterable[str]) -> None:
        """These items are to be served again on resume: what failed there says nothing of them."""
        self._write({"redo": sorted(set(items))})

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _read(path: Path) -> tuple[PartialHeader, list[tuple[str, dict[str, Any]]], int]:
    """The header, the other lines with their places, and how many bytes are whole lines."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    whole = data[: data.rfind(b"\n") + 1]
    lines: list[tuple[str, dict[str, Any]]] = []
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            lines.append((f"{path}:{number}", _object(text)))
        except ValueError as error:
            raise InputError(f"{path}:{number}: {error}; delete the file to start anew") from None
    if not lines:
        raise InputError(f"{path}: holds no header; delete the file to start anew")
    try:
        return PartialHeader.model_validate(lines[0][1]), lines[1:], len(whole)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise InputError(f"{path}:1: {field}: {problem['msg']}; delete the file to start anew") from None


def _object(text: bytes) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


def _take(records: dict[Key, RequestRecord], line: dict[str, Any], place: str) -> None:
    if "record" in line:
        try:
            record = RequestRecord.model_validate(line["record"])
        except ValidationError as error:
            raise InputError(f"{place}: {error.errors()[0]['msg']}; delete the file to start anew") from None
        records[(record.item_id, record.arm)] = record
    for item_id in line.get("redo", []):
        for key in [key for key in records if key[0] == item_id]:
            del records[key]


def _refuse_differences(path: Path, before: PartialHeader, now: PartialHeader) -> None:
    manifests = (before.run.manifest_sha256, now.run.manifest_sha256)
    differences = [f"manifest sha256: was {manifests[0]}, is {manifests[1]}"] if manifests[0] != manifests[1] else []
    for what, old, new in (("config", before.config, now.config), ("server", before.server, now.server)):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                differences.append(f"{what} {name}: was {old.get(name)!r}, is {new.get(name)!r}")
    if differences:
        raise InputError(
            f"--resume: {path} is of another run:\n  "
            + "\n  ".join(differences)
            + "\nRun it as it was, or give --overwrite to start anew."
        )
