"""What a run has finished, on disk while it goes on: one line each, so that a killed run can go on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sembench.schema import InputError, RunIdentity, naming, write_atomically

try:
    import fcntl
except ImportError:  # not on Windows; there one run per output is the user's care
    fcntl = None  # type: ignore[assignment]

Parsed = TypeVar("Parsed", bound=BaseModel)
_START_ANEW = "delete the file to start anew"


class PartialHeader(BaseModel):
    """The first line: what the run is. A run with another one must not be mixed in."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.partial.v1"] = "sembench.partial.v1"
    run: RunIdentity
    fixed: dict[str, dict[str, Any]]
    """What must not change until the run has ended: its config, and the server or the versions that it met."""


class PartialLine:
    """One line as it was read back, with its place for messages."""

    def __init__(self, place: str, text: bytes) -> None:
        self.place = place
        try:
            self.value = json.loads(text)
        except ValueError as error:
            raise InputError(f"{place}: {error}; {_START_ANEW}") from None
        if not isinstance(self.value, dict):
            raise InputError(f"{place}: expected a JSON object; {_START_ANEW}")

    def parse(self, model: type[Parsed], value: Any = None) -> Parsed:
        """The line, or ``value`` out of it, as a model."""
        try:
            return model.model_validate(self.value if value is None else value)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(str(part) for part in problem["loc"])
            raise InputError(f"{self.place}: {field}: {problem['msg']}; {_START_ANEW}") from None


class PartialRun:
    """``<output>.partial.jsonl``: a header, then what was finished. It is on the disk when ``append`` returns.

    It belongs to one run at a time, which a lock on the file enforces: two would mix their records.
    """

    def __init__(
        self,
        path: Path,
        file: BinaryIO,
        header: PartialHeader,
        lines: Sequence[PartialLine] = (),
        *,
        resumed: bool = False,
    ) -> None:
        self.path = path
        self.header = header
        self.lines = lines
        """What was there when the run was taken up again."""
        self.resumed = resumed
        self._file = file

    @classmethod
    def begin(cls, path: Path, header: PartialHeader) -> PartialRun:
        """Drops what is there, unless a run is still at it."""
        if path.exists():
            _claim(path).close()
        first = header.model_dump_json() + "\n"
        write_atomically(path, first)
        file = _claim(path)
        if path.read_bytes() != first.encode():
            file.close()
            raise _busy(path)  # begun at the same moment
        return cls(path, file, header)

    @classmethod
    def resume(cls, path: Path, header: PartialHeader) -> PartialRun:
        """Take up what is there. Refused where ``header`` is of another run; a torn last line is cut off."""
        with naming(path):
            file = _claim(path)
        try:
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            lines = [PartialLine(f"{path}:{number}", text) for number, text in enumerate(whole.splitlines(), 1)]
            if not lines:
                raise InputError(f"{path}: holds no header; {_START_ANEW}")
            before = lines[0].parse(PartialHeader)
            _refuse_differences(path, before, header)
            os.truncate(path, len(whole))
        except BaseException:
            file.close()
            raise
        return cls(path, file, before, lines[1:], resumed=True)

    def append(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.close()


def partial_path(output: Path) -> Path:
    """Where finished work waits until the result is written."""
    return output.with_name(f"{output.name}.partial.jsonl")


def _claim(path: Path) -> BinaryIO:
    """The file, opened for one run alone."""
    file = path.open("ab")
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise _busy(path) from None
        except OSError:
            pass  # Some network file systems know no locks.
    return file


def _busy(path: Path) -> InputError:
    return InputError(f"{path}: another run is writing it; wait for its end, or choose another --output")


def holds_work(path: Path) -> bool:
    """Whether more than a header is there."""
    return path.exists() and path.read_bytes().count(b"\n") > 1


def _refuse_differences(path: Path, before: PartialHeader, now: PartialHeader) -> None:
    differences = [f"{what}: was {was}, is {is_}" for what, was, is_ in _facts(before, now) if was != is_]
    if differences:
        listed = "\n  ".join(differences)
        raise InputError(f"--resume: {path} is of another run:\n  {listed}\nRun it as it was, or {_START_ANEW}.")


def _facts(before: PartialHeader, now: PartialHeader) -> Iterator[tuple[str, Any, Any]]:
    yield "kind", before.run.kind, now.run.kind
    yield "manifest sha256", before.run.manifest_sha256, now.run.manifest_sha256
    for part in sorted({*before.fixed, *now.fixed}):
        old, new = before.fixed.get(part, {}), now.fixed.get(part, {})
        for name in sorted({*old, *new}):
            yield f"{part} {name}", repr(old.get(name)), repr(new.get(name))
