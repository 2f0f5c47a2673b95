"""Log files as lines of clean text, whatever is in them, and the errors told in those lines."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from sembench.schema import InputError

MAX_LINE_BYTES = 4 << 20
"""Longer lines are cut here: no event is that long, and a dump without line ends must not fill the memory."""

_WRAPPERS = ("log", "message", "msg")
_GZIP_MAGIC = b"\x1f\x8b"
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
MAX_SAMPLE = 300
_TRACEBACK = "Traceback (most recent call last)"
_WORDS = ("Traceback", "ERROR", "CRITICAL", "FATAL")
_LEVEL = re.compile(r"(?<![A-Za-z])(?:ERROR|CRITICAL|FATAL)(?![A-Za-z])")
_OTHER_LEVEL = re.compile(r"(?<![A-Za-z])(?:DEBUG|INFO|WARNING|WARN)(?![A-Za-z])")
_NAMED = re.compile(r"(?i:semblend|connector)|(?<![A-Za-z])(?:kv|KV)(?![a-z])")
_PROCESS = re.compile(r"\([^()]*\bpid=\d+[^()]*\)|(?<![A-Za-z0-9])(?:DP\d+ )?(?:PP\d+ )?TP\d+(?![A-Za-z0-9])")
_EXCEPTION = re.compile(r"^(?:[\w.]+(?:Error|Exception|Exit|Interrupt|Warning)|[\w.]+\.[\w.]+)\b:?")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ")
"""What `kubectl logs --timestamps` puts in front of every line, those of a traceback too."""
_PRECISE_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6,}(?:Z|[+-]\d\d:\d\d) ")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


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
            yield LogLine(f"{path}:{number}", clean_line(raw), torn, cut)


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


def is_stamped(text: str) -> bool:
    """Whether `kubectl logs --timestamps` says to the nanosecond when the line was written."""
    return _PRECISE_STAMP.match(text) is not None


def clean_line(raw: bytes) -> str:
    """Text without colours and control characters. A carriage return becomes a blank: progress bars overwrite."""
    text = _unwrapped(raw.decode("utf-8", errors="replace").rstrip("\r\n"))
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub(" ", text)


def _unwrapped(text: str) -> str:
    """What was logged, where Docker, a log collector or a JSON logger keeps each line as a string in an object of its
    own. `kubectl logs --timestamps` may have put its time in front."""
    stamp = _STAMP.match(text)
    begin = stamp.end() if stamp else 0
    if not text.startswith("{", begin) or not any(f'"{name}"' in text for name in _WRAPPERS):
        return text
    try:
        wrapper = json.loads(text[begin:])
    except (ValueError, RecursionError):
        return text
    if not isinstance(wrapper, dict) or "event" in wrapper:
        return text  # an event itself
    inner: str | None = next((wrapper[name] for name in _WRAPPERS if isinstance(wrapper.get(name), str)), None)
    if inner is None or ('"semblend.audit.' in text and "semblend.audit." not in inner):
        return text  # the record stands beside the message
    return text[:begin] + inner.rstrip("\r\n")


def _one_line(stream: BinaryIO) -> tuple[bytes, bool, bool]:
    raw = rest = stream.readline(MAX_LINE_BYTES)
    cut = False
    while rest and not rest.endswith(b"\n"):
        rest = stream.readline(MAX_LINE_BYTES)
        cut = cut or bool(rest)
    return raw, not rest and bool(raw), cut


@dataclass(slots=True)
class _Block:
    lines: list[str] = field(default_factory=list)
    traceback: bool = False
    named: bool = False

    def add(self, text: str) -> None:
        self.traceback = self.traceback or _TRACEBACK in text
        self.named = self.named or bool(_NAMED.search(text))
        # The ends of a long block say what it is.
        if len(self.lines) < 200:
            self.lines.append(text)
        else:
            self.lines[-1] = text


class ErrorReader:
    """Feed it all lines; it tells of each error once it has ended.

    Counted are tracebacks, and lines at level ERROR or above that name SemBlend, a connector or KV. Lines of several
    processes may alternate: each process has a block of its own, as far as its lines name it.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Block] = {}

    def feed(self, text: str) -> Iterator[str]:
        text = _STAMP.sub("", text)
        if not self._open and not any(word in text for word in _WORDS):
            return  # almost every line of a log; no pattern need be tried on it
        named = _PROCESS.search(text[:200])
        process = named[0] if named else ""
        block = self._open.get(process)
        starts = _TRACEBACK in text or _LEVEL.search(text[:200]) is not None
        if block is not None and not (starts or _continues(text, block)):
            del self._open[process]
            yield from _ended(block)
            block = None
        if block is None and starts:
            block = self._open[process] = _Block()
        if block is not None:
            if _begins_anew(text, block):
                yield from _ended(block)
                block = self._open[process] = _Block()
            block.add(text)

    def finish(self) -> Iterator[str]:
        for block in self._open.values():
            yield from _ended(block)
        self._open.clear()


def _continues(text: str, block: _Block) -> bool:
    """Inside a traceback: indented frames, the exception, what chains two of them, empty lines."""
    if not block.traceback or _OTHER_LEVEL.search(text[:200]):
        return False
    return not text.strip() or text[:1].isspace() or text.startswith(_CHAINED) or bool(_EXCEPTION.match(text))


def _begins_anew(text: str, block: _Block) -> bool:
    """Two ERROR lines in a row are two errors, unless they are the parts of one traceback."""
    if not block.lines or _LEVEL.search(text[:200]) is None:
        return False
    if block.traceback:
        # A traceback logged line by line: the next entry begins where a line is neither frame nor exception.
        return _has_ended(block) and _TRACEBACK not in text and not any(words in text for words in _CHAINED)
    return _TRACEBACK not in text


def _has_ended(block: _Block) -> bool:
    last = _message(block.lines[-1])
    return bool(_EXCEPTION.match(last)) and not last.startswith(" ")


def _message(text: str) -> str:
    """A line without what a logger puts in front of it."""
    return re.sub(r"^.*?(?:ERROR|CRITICAL|FATAL)\b(?: [\d:.,\- ]+)?(?: ?\[[^\]]*\])?:? ?", "", text, count=1)


def _ended(block: _Block) -> Iterator[str]:
    if not (block.traceback or block.named):
        return
    telling = [line for line in block.lines if _EXCEPTION.match(_message(line).strip())]
    sample = telling[-1] if block.traceback and telling else block.lines[0]
    yield sample.strip()[:MAX_SAMPLE]
