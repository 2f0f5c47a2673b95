"""CSV files, line by line, with their line numbers for whoever has to say what is wrong."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Set
from pathlib import Path

from sembench.schema import InputError, naming

_LONGEST_FIELD = 16 * 1024 * 1024


def csv_lines(path: Path, needed: Set[str], columns: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Cells by column; empty ones are left out. ``columns``: what the file should have, for the message."""
    csv.field_size_limit(_LONGEST_FIELD)
    with naming(path), path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        try:
            missing = sorted(needed - set(reader.fieldnames or ()))
            if missing:
                raise InputError(f"{path}:1: no column {', '.join(missing)}; the columns are {columns}")
            for line in reader:
                yield reader.line_num, {name: cell for name, cell in line.items() if name and cell}
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path}:{reader.line_num + 1}: not CSV in UTF-8: {error}") from None
