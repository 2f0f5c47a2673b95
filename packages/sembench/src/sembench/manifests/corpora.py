"""Rows of the published datasets, from the hub or from local files of the same fields, and folders of plain text."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sembench.manifests.folder import SUFFIXES, digest_files, read_text
from sembench.manifests.longbench import V1_DATASETS, V1_REVISION, hub_rows, v1_file
from sembench.manifests.published import PUBLISHED, PublishedDataset, find_dataset
from sembench.manifests.source import SourceDocument
from sembench.schema import InputError, naming

_ROWS = (".jsonl", ".csv", ".parquet")
_LONGBENCH = "longbench"
"""Its subsets lie in a folder of this name: two of them are called like datasets of their own."""


@dataclass(frozen=True)
class Corpus:
    """What documents are made of: rows, each of which can be asked about, or running text, which is cut anew."""

    dataset: str
    rows: Callable[[], Iterator[SourceDocument]] | None = None
    texts: tuple[str, ...] = ()


def open_corpora(
    names: tuple[str, ...], source: Path | None, revision: str | None
) -> tuple[list[Corpus], dict[str, Any]]:
    """The corpora, and where they come from, for the manifest's record. No names: all that there are."""
    if source is None:
        wanted = [find_dataset(name) for name in names] or [each for each in PUBLISHED if each.file]
        corpora = [Corpus(dataset.name, _from_hub(dataset, revision)) for dataset in dict.fromkeys(wanted)]
        return corpora, {"repositories": {each.name: _origin(each, revision) for each in wanted}}
    files = sorted(path for path in source.rglob("*") if path.is_file())
    tables = [path for path in files if path.suffix in _ROWS]
    if not tables:
        return _open_texts(source, [path for path in files if path.suffix in SUFFIXES], names)
    found: dict[PublishedDataset, list[Path]] = {}
    for path in tables:
        dataset = _dataset_of(path)
        if dataset is not None:
            found.setdefault(dataset, []).append(path)
    wanted = [find_dataset(name) for name in names] or list(found)
    missing = [dataset.name for dataset in wanted if dataset not in found]
    if missing or not found:
        there = ", ".join(path.relative_to(source).as_posix() for path in tables)
        raise InputError(f"--source {source}: no file named after {', '.join(missing) or 'a dataset'}; it has {there}")
    used = [path for dataset in wanted for path in found[dataset]]
    corpora = [Corpus(dataset.name, _from_files(dataset, found[dataset])) for dataset in wanted]
    return corpora, {"source_sha256": digest_files(used, source)}


def _dataset_of(path: Path) -> PublishedDataset | None:
    name = _LONGBENCH if path.parent.name.lower() == _LONGBENCH else path.stem
    return next((dataset for dataset in PUBLISHED if dataset.is_called(name)), None)


def _open_texts(source: Path, paths: list[Path], names: tuple[str, ...]) -> tuple[list[Corpus], dict[str, Any]]:
    """A folder of texts is one corpus, named after it."""
    grouped: dict[str, list[Path]] = {}
    for path in paths:
        grouped.setdefault(path.parent.name or "text", []).append(path)
    missing = [name for name in names if name not in grouped]
    if missing or not grouped:
        what = f"no folder {', '.join(missing)}" if missing else f"neither rows ({', '.join(_ROWS)}) nor texts"
        raise InputError(f"--source {source}: holds {what} ({', '.join(SUFFIXES)})")
    wanted = names or tuple(grouped)
    corpora = [Corpus(name, texts=tuple(read_text(path) for path in grouped[name])) for name in wanted]
    return corpora, {"source_sha256": digest_files([path for name in wanted for path in grouped[name]], source)}


def _from_hub(dataset: PublishedDataset, revision: str | None) -> Callable[[], Iterator[SourceDocument]]:
    if dataset.file is None:
        raise InputError(
            f"--datasets {dataset.name}: {dataset.repository} has to be downloaded by hand; put its file into a folder "
            f"as {dataset.name}.csv or {dataset.name}.jsonl and name the folder with --source"
        )
    files = [f"hf://datasets/{dataset.repository}@{revision or dataset.revision}/{dataset.file}"]
    if dataset.name == _LONGBENCH:
        files = [v1_file(subset, revision or V1_REVISION) for subset in V1_DATASETS]
    return lambda: _sources(dataset, ((f"{file}: row {n}", row) for file in files for n, row in _numbered(file)))


def _numbered(file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    return enumerate(hub_rows(file), 1)


def _origin(dataset: PublishedDataset, revision: str | None) -> str:
    return f"{dataset.repository}@{revision or dataset.revision}"


def _from_files(dataset: PublishedDataset, paths: list[Path]) -> Callable[[], Iterator[SourceDocument]]:
    return lambda: _sources(dataset, (located for path in paths for located in _located_rows(path)))


def _sources(dataset: PublishedDataset, rows: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[SourceDocument]:
    for place, row in rows:
        source = dataset.source(row, place)
        if source is not None:
            yield source


def _located_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix == ".parquet":
        yield from ((f"{path}: row {number}", row) for number, row in _numbered(str(path)))
    elif path.suffix == ".csv":
        csv.field_size_limit(sys.maxsize)  # An article is longer than the module expects of a field.
        with naming(path), path.open(encoding="utf-8", newline="") as file:
            yield from ((f"{path}: row {number}", row) for number, row in enumerate(csv.DictReader(file), 1))
    else:
        with naming(path), path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}:{number}", _parsed(line, f"{path}:{number}")


def _parsed(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{place}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise InputError(f"{place}: expected a JSON object, got {type(row).__name__}")
    return row
