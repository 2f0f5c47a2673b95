"""Log files as lines of clean text, whatever is in them: colours, binary rubbish, gzip, lines without end."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sembench.schema import InputError

MAX_LINE_BYTES = 4 << 20
"""Longer lines are cut here: no event is that long, and a dump without line ends must not fill the memory."""

_GZIP_MAGIC = b"\x1f\x8b"
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, without its end."""

    place: str
    """File and line, for messages."""
    text: str
    torn: bool = False
    """The file ends in it, without a line end."""
    cut: bool = False
    """It was longer than ``MAX_LINE_BYTES``; the rest is not here."""
    damage: str | None = None
    """The file cannot be read beyond here, and why."""


def read_lines(path: Path) -> Iterator[LogLine]:
    """All lines of a plain or gzip file. A damaged end is told in a last line; a missing file is an InputError."""
    number = 0
    with open_log(path) as stream:
        while True:
            try:
                raw, torn, cut = _one_line(stream)
            except (EOFError, zlib.error, OSError) as error:
                yield LogLine(f"{path}:{number + 1}", "", damage=f"cannot be read further: {error}")
                return
            if not raw:
                return
            number += 1
            yield LogLine(f"{path}:{number}", clean(raw), torn, cut)


def open_log(path: Path) -> BinaryIO:
    try:
        with path.open("rb") as probe:
            compressed = probe.read(2) == _GZIP_MAGIC
        return gzip.open(path, "rb") if compressed else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise InputError(f"--input {path}: {error.strerror or error}") from None


def is_plain(path: Path) -> bool:
    """Whether the first thing in the file is an object: a stream of JSON lines with nothing in front of them."""
    with open_log(path) as stream:
        if isinstance(stream, gzip.GzipFile):
            return False
        return stream.read(4096).lstrip()[:1] in (b"{", b"")


def clean(raw: bytes) -> str:
    """Text without colours and control characters. A carriage return becomes a blank: progress bars overwrite."""
    text = raw.decode("utf-8", errors="replace").rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub(" ", text)


def _one_line(stream: BinaryIO) -> tuple[bytes, bool, bool]:
    raw = rest = stream.readline(MAX_LINE_BYTES)
    cut = False
    while rest and not rest.endswith(b"\n"):
        rest = stream.readline(MAX_LINE_BYTES)
        cut = cut or bool(rest)
    return raw, not rest and bool(raw), cut
