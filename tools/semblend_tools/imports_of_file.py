"""Which modules a Python file imports, and whether it does so when it is itself imported."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """`import module` or, with a name, `from module import name`.

    `at_import_time` is False inside a function and under TYPE_CHECKING, `for_types` is True in the latter.
    """

    module: str
    name: str | None
    line: int
    at_import_time: bool
    for_types: bool = False

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def imports_of(path: Path, module: str, *, is_package: bool) -> list[Import]:
    """All imports of a file; relative ones are resolved against `module`, the file's own dotted name."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    package = module if is_package else module.rpartition(".")[0]
    return list(_walk(tree.body, package, at_import_time=True))


def _walk(nodes: list[ast.stmt], package: str, *, at_import_time: bool, for_types: bool = False) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno, at_import_time, for_types)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, package)
            for alias in node.names:
                yield Import(source, alias.name, node.lineno, at_import_time, for_types)
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _walk(node.body, package, at_import_time=False, for_types=True)
            yield from _walk(node.orelse, package, at_import_time=at_import_time)
        else:
            runs_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            now = at_import_time and not runs_later
            yield from _walk(_statements_in(node), package, at_import_time=now, for_types=for_types)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    base = package.split(".")
    base = base[: len(base) - (node.level - 1)]
    return ".".join([*base, *([node.module] if node.module else [])])


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _statements_in(node: ast.AST) -> list[ast.stmt]:
    """The statements directly inside a compound one: bodies, else branches, handlers, match cases."""
    found: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            found.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            found += _statements_in(child)
    return found
