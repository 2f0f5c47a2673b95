"""Records of measured cases as JSON lines: what an interrupted study goes on from, and what several runs add up to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read_records(files: Sequence[Path]) -> list[Record]:
    """All cases of all files; what several runs measured of one case is put together."""
    merged: dict[tuple[Any, ...], Record] = {}
    for file in files:
        for line in file.read_text().splitlines() if file.exists() else ():
            record = json.loads(line)
            known = merged.setdefault(key_of(record), record)
            if known is not record:
                known["trials"].update(record["trials"])
                known["arms"] = sorted({*known["arms"], *record["arms"]})
                merged[key_of(record)] = {**record, **known}
    return [*merged.values()]


def append_record(file: Path | None, record: Record) -> None:
    if file is not None:
        with file.open("a") as lines:
            lines.write(json.dumps(record) + "\n")


def key_of(record: Record) -> tuple[Any, ...]:
    return record["model"], record["cell"], record["continuation_tokens"], record["number"]


def by_cell(records: Iterable[Record]) -> dict[str, dict[str, list[Record]]]:
    """Records by model and cell, in the order of their cases."""
    cells: dict[str, dict[str, list[Record]]] = {}
    for record in sorted(records, key=lambda each: each["number"]):
        cells.setdefault(record["model"], {}).setdefault(record["cell"], []).append(record)
    return cells
