"""Reading and writing the formats. What is wrong with a file is said with its name, line and field."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)
_NAMED = 20
"""Problems of one document that are named; the others are counted."""
_LONGEST = 300
"""Characters of what an error quotes of a file."""


class InputError(Exception):
    """A file that cannot be used; the message says where and why. The command line exits with ``exit_code``."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def read_jsonl(path: Path, model: type[Model]) -> Iterator[Model]:
    """One model per line."""
    with _opened(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield validated(_parsed(line), model, f"{path}:{number}")
            except (ValueError, RecursionError) as error:
                hint = "" if line.endswith(b"\n") else "; the file ends in the middle of a line"
                raise InputError(f"{path}:{number}: not JSON: {error}{hint}") from None


def read_json(path: Path, model: type[Model], *, list_as: str | None = None) -> Model:
    """``list_as``: a document that is only a list is this field of the model."""
    with _opened(path) as file:
        data = file.read()
    try:
        document = _parsed(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if list_as is not None and isinstance(document, list):
        document = {list_as: document}
    return validated(document, model, str(path))


@contextmanager
def naming(what: object) -> Iterator[None]:
    """A file that cannot be opened or written is an InputError that starts with ``what``, such as the option."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}") from None


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """The file is the old one or the new one, whenever the process is killed. ``text`` may come in pieces."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines([text] if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _opened(path: Path) -> Any:
    with naming(path):
        return path.open("rb")


def _parsed(data: bytes) -> Any:
    """Raises ValueError too for half a character, which no file could be written with."""
    document = json.loads(data.decode("utf-8"))
    if rb"\ud" in data.lower():
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    return document


def validated(document: Any, model: type[Model], where: str) -> Model:
    """``document`` as a model; what is wrong with it is said behind ``where``."""
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected a JSON object, got {type(document).__name__}")
    _check_version(document, model, where)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problems = error.errors()
        more = [f"{where}: and {len(problems) - _NAMED} more"] if len(problems) > _NAMED else []
        raise InputError("\n".join([*(_describe(where, each) for each in problems[:_NAMED]), *more])) from None


def _check_version(document: dict[str, Any], model: type[Model], where: str) -> None:
    # Said on its own: every other complaint about a file of another version would mislead.
    for name in ("schema_version", "benchmark_version"):
        field = model.model_fields.get(name)
        if field is not None and document.get(name) != field.default:
            found = f"{document[name]!r:.80}" if name in document else "missing"
            raise InputError(f"{where}: {name}: expected {field.default!r}, found {found}")


def _describe(where: str, problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {field[:_LONGEST] + ': ' if field else ''}{problem['msg'][:_LONGEST]}"
