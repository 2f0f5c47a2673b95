"""Reading an audit stream back, torn lines and all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from semblend_core.telemetry.events import AUDIT_SCHEMA
from semblend_core.telemetry.rotating_file import backup_path

LONGEST_LINE = 16 * 1024**2
"""Bytes. No record is nearly so long."""


@dataclass(frozen=True, slots=True)
class TornLine:
    """A line that is not a record: cut off by a crash, or not of this schema."""

    file: Path
    line: int
    """Counted from 1."""
    problem: str
    start: str
    """Its first characters."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.problem}: {self.start!r}"


@dataclass(frozen=True, slots=True)
class AuditReading:
    """All of a stream: its records, and where it is broken."""

    records: tuple[dict[str, Any], ...]
    torn: tuple[TornLine, ...]


def audit_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The files of the stream at ``path`` that exist, oldest first: its backups, then itself."""
    current = Path(path)
    # Rotation moves the file behind a link, so its backups lie beside that.
    target = Path(os.path.realpath(current))
    backup = re.compile(re.escape(target.name) + r"\.([1-9][0-9]*)")
    names = os.listdir(target.parent) if target.parent.is_dir() else []
    numbers = sorted((int(match[1]) for name in names if (match := backup.fullmatch(name))), reverse=True)
    files = [backup_path(target, number) for number in numbers]
    return (*files, current) if current.exists() else tuple(files)


def iter_audit(path: str | os.PathLike[str], *, backups: bool = True) -> Iterator[dict[str, Any] | TornLine]:
    """The records and torn lines of ``path`` and its backups, in the order written, one at a time."""
    files = audit_files(path) if backups else (Path(path),)
    if not files:
        raise FileNotFoundError(f"no audit stream at {os.fspath(path)}: neither the file nor a backup exists")
    for file in files:
        with file.open("rb") as stream:
            for number, line in enumerate(_lines(stream), start=1):
                if line.strip():
                    yield _record(file, number, line)


def read_audit(path: str | os.PathLike[str], *, backups: bool = True) -> AuditReading:
    """Read the whole stream at ``path``, its backups first. Torn lines are reported, not raised."""
    records: list[dict[str, Any]] = []
    torn: list[TornLine] = []
    for each in iter_audit(path, backups=backups):
        if isinstance(each, TornLine):
            torn.append(each)
        else:
            records.append(each)
    return AuditReading(tuple(records), tuple(torn))


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Of one that is too long only so much that it can be told: whoever wrote the file, memory is bounded."""
    while line := stream.readline(LONGEST_LINE + 1):
        rest = line
        while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE + 1)
        yield line


def _record(file: Path, number: int, line: bytes) -> dict[str, Any] | TornLine:
    if len(line) > LONGEST_LINE:
        return TornLine(file, number, f"longer than {LONGEST_LINE} bytes", _start(line))
    problem = "not a whole JSON object"
    # UnicodeDecodeError and JSONDecodeError are both ValueErrors; deep nesting exhausts the parser's stack.
    try:
        value = json.loads(line)
        if isinstance(value, dict):
            if value.get("schema") == AUDIT_SCHEMA:
                return value
            problem = f"schema {str(value.get('schema'))[:60]!r} is not {AUDIT_SCHEMA!r}"
    except (ValueError, RecursionError):
        pass
    return TornLine(file, number, problem, _start(line))


def _start(line: bytes) -> str:
    return line[:60].decode("utf-8", errors="replace")
