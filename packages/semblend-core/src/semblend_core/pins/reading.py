"""Definitions in Python files, found by their dotted names, without running any of it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function | ast.Assign | ast.AnnAssign


class Sources:
    """A folder that holds an engine's package, such as ``site-packages``. Each file is parsed once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parsed: dict[str, ast.Module] = {}

    def file_of(self, name: str) -> str | None:
        """The file, relative to the folder, of the longest part of a dotted name that is a module."""
        parts = name.split(".")
        for end in range(len(parts) - 1, 0, -1):
            module = "/".join(parts[:end])
            for path in (f"{module}.py", f"{module}/__init__.py"):
                if (self._root / path).is_file():
                    return path
        return None

    def digest_of_file(self, path: str) -> str | None:
        try:
            return hashlib.sha256((self._root / path).read_bytes()).hexdigest()
        except OSError:
            return None

    def find(self, name: str) -> list[Definition]:
        """All definitions of a name: a property has one for each of its functions. Empty where there is none."""
        path = self.file_of(name)
        if path is None:
            return []
        module = path.removesuffix(".py").removesuffix("/__init__")
        body: list[ast.stmt] = self._parse(path).body
        found: list[Definition] = []
        for part in name.split(".")[module.count("/") + 1 :]:
            found = [each for each in _definitions(body) if part in _names(each)]
            body = [statement for each in found for statement in getattr(each, "body", ())]
        return found

    def _parse(self, path: str) -> ast.Module:
        if path not in self._parsed:
            self._parsed[path] = ast.parse((self._root / path).read_bytes())
        return self._parsed[path]


def digest_of(definitions: Iterable[Definition]) -> str:
    """Of what they do: comments, docstrings and formatting do not count, nor does the Python that reads them."""
    told = "\n".join(_told(each) for each in definitions)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def fields_of(definitions: Iterable[Definition]) -> list[str]:
    """The fields of a class, or the parameters of a function."""
    found: set[str] = set()
    for each in definitions:
        if isinstance(each, ast.ClassDef):
            found.update(_fields_of_class(each))
        elif isinstance(each, Function):
            found.update(argument.arg for argument in ast.walk(each.args) if isinstance(argument, ast.arg))
    return sorted(found)


def _fields_of_class(each: ast.ClassDef) -> Iterator[str]:
    """What its body assigns (as for dataclasses, structs and enumerations), its slots, and what ``__init__`` sets."""
    for statement in _definitions(each.body):
        if isinstance(statement, Function):
            if statement.name == "__init__":
                yield from _set_on_self(statement)
        elif "__slots__" in _names(statement):
            slots = (node.value for node in ast.walk(statement) if isinstance(node, ast.Constant))
            yield from (slot for slot in slots if isinstance(slot, str))
        elif not isinstance(statement, ast.ClassDef):
            yield from _names(statement)


def _set_on_self(init: Function) -> Iterator[str]:
    for node in ast.walk(init):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def _definitions(body: Iterable[ast.stmt]) -> Iterator[Definition]:
    """Also those under a condition, as where a definition depends on the platform."""
    for statement in body:
        if isinstance(statement, Definition):
            yield statement
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _definitions(getattr(statement, part, ()))
            for handler in getattr(statement, "handlers", ()):
                yield from _definitions(handler.body)


def _names(definition: Definition) -> list[str]:
    if isinstance(definition, ast.ClassDef | Function):
        return [definition.name]
    targets = definition.targets if isinstance(definition, ast.Assign) else [definition.target]
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _told(node: Any) -> str:
    """A form of the tree that is the same in all versions of Python: fields that are empty are left out."""
    if isinstance(node, list):
        return "[" + ",".join(map(_told, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, ast.ClassDef | Function):
            value = _without_docstrings(value)
        if value not in (None, []) and name not in ("ctx", "kind", "type_comment"):
            fields.append(f"{name}={_told(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _without_docstrings(body: list[ast.stmt]) -> list[ast.stmt]:
    """Strings that stand alone: of a definition, or of a field above them."""
    return [
        statement
        for statement in body
        if not (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        )
    ]
