"""A local folder as sources: files in LongBench's format, or plain text with questions taken from the text itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from sembench.manifests.draws import Draws
from sembench.manifests.longbench import V1Row, V2Row, document_id, make_source_v1, make_source_v2
from sembench.manifests.source import Fact, SourceDocument
from sembench.manifests.text_units import find_sentences, squeeze
from sembench.schema import InputError, read_jsonl

SUFFIXES = (".txt", ".rst", ".md")
_FACTS = 6
_LENGTHS = (60, 240)
"""Characters of a sentence that can be asked about: enough to be found, short enough to be read."""
_TERM = re.compile(r"\b(?:\d[\d.,-]{2,}\d|[A-Z][a-z]{3,}(?: [A-Z][a-z]{2,})*|[a-z]{7,})\b")
Grouped = dict[str, list[SourceDocument]]
"""Sources by dataset, in the order of their rows."""


def read_folder(folder: Path, version: int, datasets: tuple[str, ...], seed: int) -> tuple[Grouped, str]:
    """The sources of a folder and the digest of the files they came from. Empty ``datasets``: all that it has."""
    rows = sorted(path for path in folder.rglob("*.jsonl") if path.is_file())
    arrays = [folder / "data.json"] if version == 2 and (folder / "data.json").is_file() else []
    texts = [] if rows or arrays else sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    if not rows and not arrays and not texts:
        raise InputError(f"--source {folder}: holds no .jsonl file and no text ({', '.join(SUFFIXES)})")
    wanted = [path for path in rows if not datasets or path.stem in (*datasets, "data")]
    grouped: Grouped = {}
    for source in _sources([*wanted, *arrays], version) if rows or arrays else _texts(texts, folder, seed):
        if not datasets or source.dataset in datasets:
            grouped.setdefault(source.dataset, []).append(source)
    missing = [name for name in datasets if name not in grouped]
    if missing:
        found = sorted({*grouped, *(path.stem for path in rows)})
        raise InputError(f"--datasets {' '.join(missing)}: not in --source {folder}, which has {', '.join(found)}")
    return grouped, digest_files([*wanted, *arrays, *texts], folder)


def _sources(files: list[Path], version: int) -> Iterator[SourceDocument]:
    for path in files:
        if path.suffix == ".json":
            yield from (make_source_v2(row, None) for row in _read_array(path))
        elif version == 1:
            yield from (make_source_v1(row, path.stem) for row in read_jsonl(path, V1Row))
        else:
            named = None if path.stem == "data" else path.stem
            yield from (make_source_v2(row, named) for row in read_jsonl(path, V2Row))


def _read_array(path: Path) -> Iterator[V2Row]:
    """LongBench v2 as it is published: one JSON array."""
    try:
        rows = json.loads(path.read_bytes())
        if not isinstance(rows, list):
            raise InputError(f"{path}: expected a JSON array of rows, got {type(rows).__name__}")
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    for number, row in enumerate(rows):
        try:
            yield V2Row.model_validate(row)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(str(part) for part in problem["loc"])
            raise InputError(f"{path}: row {number}: {field}: {problem['msg']}") from None


def _texts(paths: list[Path], folder: Path, seed: int) -> Iterator[SourceDocument]:
    return (read_text_source(path, folder, seed) for path in paths)


def digest_files(paths: list[Path], folder: Path) -> str:
    """Of names and contents: the folder may lie anywhere."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.relative_to(folder).as_posix().encode() + b"\0")
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def read_text_source(path: Path, root: Path, seed: int) -> SourceDocument:
    """The questions are gaps in sentences of the text; what fills a gap stands nowhere else in it."""
    text = read_text(path).strip()
    name = path.relative_to(root).as_posix()
    dataset = path.relative_to(root).parent.as_posix()
    facts = make_gap_questions(text, Draws(seed, name, "gaps"))
    if not facts:
        raise InputError(f"{path}: holds no sentence that a question could be made of; take it out of --source")
    dataset = "text" if dataset == "." else dataset
    return SourceDocument(dataset, dataset, name, "document", text, facts, metadata={"document_id": document_id(text)})


def make_gap_questions(text: str, draws: Draws) -> tuple[Fact, ...]:
    """A few, in random order, from sentences all over the text."""
    occurrences = Counter(match.group() for match in _TERM.finditer(text))
    flat = squeeze(text)
    facts: list[Fact] = []
    for start, end in draws.shuffled(find_sentences(text)):
        sentence = squeeze(text[start:end])
        if not _LENGTHS[0] <= len(sentence) <= _LENGTHS[1]:
            continue
        once = [
            match
            for match in _TERM.finditer(sentence)
            if occurrences[match.group()] == 1 and flat.count(match.group()) == 1 and match.start() > 0
        ]
        if once:
            facts.append(_gap(sentence, draws.pick(once)))
        if len(facts) == _FACTS:
            break
    return tuple(facts)


def _gap(sentence: str, term: re.Match[str]) -> Fact:
    gap = sentence[: term.start()] + "____" + sentence[term.end() :]
    return Fact(
        f"Which words of the document belong in the gap of this sentence? {gap}",
        f"Complete this sentence as it stands in the document, and give the missing words only: {gap}",
        (term.group(),),
    )


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text at byte {error.start}; convert it or take it out of --source"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
