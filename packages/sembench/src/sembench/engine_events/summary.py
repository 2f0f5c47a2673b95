"""Log files of one engine, read into one summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sembench.engine_events.event import Event, LineParser, UnreadableEventError
from sembench.engine_events.json_streams import (
    AUDIT_FAMILY,
    AUDIT_TELLS,
    TrtllmStream,
    check_schema,
    cut_out_records,
    read_audit_event,
)
from sembench.engine_events.log_files import ErrorReader, LogLine, is_plain, is_stamped, read_lines
from sembench.engine_events.tally import EventTally
from sembench.engine_events.text_logs import LmcacheLog, SglangLog, VllmLog, find_time
from sembench.schema import EngineSummary, InputError
from semblend_core import read_audit

ENGINES = ("vllm", "sglang", "trtllm", "lmcache", "semblend")
MAX_TORN = 20
_ADDED_UP = ("materialized", "load_advertised", "alias")
_ONE_RECORD = ("event", "time", "request_id", "client_request_id", "tokens")
"""What two records have in common only if they are one."""

_PARSERS: dict[str, Callable[[], LineParser]] = {
    "vllm": VllmLog,
    "sglang": SglangLog,
    "trtllm": TrtllmStream,
    "lmcache": LmcacheLog,
}


def summarize(engine: str, inputs: Sequence[Path]) -> EngineSummary:
    """Count what ``inputs`` tell. Raises InputError for a missing file and for an audit stream of another version."""
    if engine not in ENGINES:
        raise InputError(f"--engine {engine}: is none of {', '.join(ENGINES)}")
    _check_inputs(inputs)
    reading = _Reading(engine)
    for number, path in enumerate(inputs):
        reading.begin_file(number)
        reading.read(path, inputs)
    return reading.summary(inputs)


def _check_inputs(inputs: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for path in inputs:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "no such file"
            raise InputError(f"--input {path}: {what}")
        if path.resolve() in seen:
            raise InputError(f"--input {path}: given twice; its events would be counted twice")
        seen.add(path.resolve())


class _Reading:
    """The state of one summary. The audit stream and the format's own events are counted apart until the end."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.parser = _PARSERS[engine]() if engine in _PARSERS else None
        self.own = EventTally()
        self.audit = EventTally()
        self.lines = self.unparsed = self.unread = self.repeated = 0
        self.torn: list[str] = []
        self._seen: set[int] = set()

    def begin_file(self, number: int) -> None:
        self.own.source = self.audit.source = number

    def read(self, path: Path, inputs: Sequence[Path]) -> None:
        if self.engine == "semblend" and is_plain(path):
            self._read_stream(path, inputs)
        else:
            self._read_log(path)

    def _read_stream(self, path: Path, inputs: Sequence[Path]) -> None:
        """A file of audit records alone, behind its rotated predecessors unless they are inputs themselves."""
        others = {other.resolve() for other in inputs} - {path.resolve()}
        named = any(
            other.name.startswith(f"{path.name}.") and other.parent == path.resolve().parent for other in others
        )
        reading = read_audit(path, backups=not named)
        other_text = any(not torn.start.lstrip().startswith("{") for torn in reading.torn)
        if other_text or not reading.records:
            self._read_log(path)  # a log after all
            return
        self.lines += len(reading.records) + len(reading.torn)
        for record in reading.records:
            self._add_record(record, str(path))
        for torn in reading.torn:
            if torn.problem.startswith(f"schema '{AUDIT_FAMILY}"):
                raise InputError(f"{torn.file}:{torn.line}: {torn.problem}")
            self._unreadable(str(torn))

    def _read_log(self, path: Path) -> None:
        errors = ErrorReader()
        for line in read_lines(path):
            if line.damage:
                self.unread += 1
                self._unreadable(f"{line.place}: {line.damage}")
                continue
            self.lines += 1
            self._read_line(line)
            for sample in errors.feed(line.text):
                self.own.add_error(sample)
        for sample in errors.finish():
            self.own.add_error(sample)

    def _read_line(self, line: LogLine) -> None:
        records, problems, text = cut_out_records(line.text, line.place)
        for record in records:
            self._add_record(record, line.place)
        for problem in problems:
            self._unreadable(f"{line.place}: {problem}: {line.text[:60]!r}")
        try:
            if self.parser is None and not problems and text.lstrip().startswith("{"):
                raise UnreadableEventError("not a whole audit record")
            events = list(self.parser.events(text)) if self.parser and not problems else []
        except UnreadableEventError as error:
            self._unreadable(f"{line.place}: {error}: {line.text[:60]!r}")
            return
        if events and is_stamped(line.text) and self._was_read(line.text):
            return
        for event in events:
            if event.kind == "unreadable":
                self._unreadable(f"{line.place}: {event.reason}: {line.text[:60]!r}")
            else:
                self.own.add(event)
        if events:
            self._note(line, events)

    def _note(self, line: LogLine, events: list[Event]) -> None:
        time = find_time(line.text)
        if time is not None and all(event.time is None for event in events):
            self.own.saw_time(time)
        if line.torn and not line.text.rstrip().endswith("}"):
            self._torn(f"{line.place}: the file ends without a line end; the last figure may be cut")

    def _add_record(self, record: dict[str, Any], place: str) -> None:
        check_schema(record.get("schema"), place)
        if record.get("event") in _ADDED_UP and self._was_read(tuple(str(record.get(name)) for name in _ONE_RECORD)):
            return
        try:
            self.audit.add(read_audit_event(record))
        except UnreadableEventError as error:
            self._unreadable(f"{place}: {error}")

    def _was_read(self, one: object) -> bool:
        """Whether the same stood before, to the moment: logs that were collected twice overlap."""
        key = hash(one)
        again = key in self._seen
        self._seen.add(key)
        self.repeated += again
        return again

    def _unreadable(self, what: str) -> None:
        self.unparsed += 1
        self._torn(what)

    def _torn(self, what: str) -> None:
        if len(self.torn) < MAX_TORN:
            self.torn.append(what)

    def summary(self, inputs: Sequence[Path]) -> EngineSummary:
        if self.parser is not None:
            for event in self.parser.finish():
                self.own.add(event)
        # The audit stream is the authority where there is one: text beside it tells of the same requests again.
        from_audit = self.audit.recognised > 0 or self.parser is None
        extra: dict[str, Any] = {"source": "semblend.audit.v1" if from_audit else self.engine}
        if self.parser is not None:
            extra |= {name: count for name, count in self.parser.remarks().items() if count}
        counted = {"unread_files": self.unread, "repeated_events": self.repeated}
        extra |= {name: count for name, count in counted.items() if count}
        if from_audit and self.own.recognised:
            extra["events_told_twice"] = self.own.recognised
        chosen = self.audit if from_audit else self.own
        if from_audit:
            self.audit.take_errors(self.own)
        return chosen.summary(
            self.engine,
            (str(path) for path in inputs),
            lines=self.lines,
            unparsed=self.unparsed,
            torn=self.torn,
            tells=self._tells(chosen, from_audit),
            # Where a line was lost it may have been the one that told of a landing.
            outcomes_are_told=from_audit or not self._is_whole(),
            extra=extra,
        )

    def _is_whole(self) -> bool:
        """Whether all events of text could be read, and those of landings be given to their requests."""
        return not self.unparsed and not self.own.unnamed_landings

    def _tells(self, chosen: EventTally, from_audit: bool) -> frozenset[str]:
        """What may be 0. A log without any event of ours may be of a server that writes none: then nothing is told."""
        is_stream = from_audit or (self.parser is not None and self.parser.is_stream)
        if not chosen.recognised and not (is_stream and self.lines == 0):
            return frozenset()
        return AUDIT_TELLS if from_audit or self.parser is None else self.parser.tells
