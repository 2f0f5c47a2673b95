"""Who may import whom. Checked on the syntax tree, so nothing has to be installed and nothing runs.

1. A package reaches core only through core's public modules, and never reaches another package.
2. What a package imports while it is itself imported is the standard library, itself, core, or a required
   dependency. Engines and the packages of extras are imported inside functions, or in a module that
   `[tool.semblend] optional-import-modules` names.
3. The modules of a package do not import each other in a circle, inside functions neither.
4. They import along the arrows that docs/architecture.md draws.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from semblend_tools.import_cycles import find_cycle
from semblend_tools.import_layers import layers_in
from semblend_tools.imports_of_file import Import, imports_of
from semblend_tools.packages import CORE, Package
from semblend_tools.requirements import normalized

PUBLIC_CORE_MODULES = (
    "semblend_core",
    "semblend_core.settings",
    "semblend_core.pins",
    "semblend_core.control",
    "semblend_core.costs",
    "semblend_core.eviction",
    "semblend_core.prompts",
    "semblend_core.testing",
    "semblend_core.testing.benchmarks",
    "semblend_core.testing.configurations",
    "semblend_core.testing.conformance",  # apart from its package, because it needs pytest
    "semblend_core.testing.fuzzing",  # and this one hypothesis
    "semblend_core.testing.published",
    "semblend_core.recompute",
    "semblend_core.serving",
    "semblend_core.serving.tree",  # needs torch
    "semblend_core.serving.worker",  # needs torch
    "semblend_core.kv",  # needs torch
    "semblend_core.reference",
)


@dataclass(frozen=True, order=True)
class Violation:
    path: Path
    line: int
    message: str


@dataclass(frozen=True)
class SourceFile:
    package: Package
    path: Path
    module: str  # dotted name for files of src/, the bare stem elsewhere
    in_source: bool

    @property
    def imports(self) -> list[Import]:
        return imports_of(self.path, self.module, is_package=self.path.name == "__init__.py")


def violations_of(packages: Sequence[Package]) -> list[Violation]:
    found: list[Violation] = []
    for package in packages:
        files = list(_files(package))
        for file in files:
            for imported in file.imports:
                found += _check(file, imported, packages)
        in_source = [file for file in files if file.in_source]
        found += _cycles(in_source)
        found += _against_layers(package, in_source)
    return sorted(set(found))


def _files(package: Package) -> Iterator[SourceFile]:
    root = package.path / "src"
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        yield SourceFile(package, path, ".".join(parts), in_source=True)
    for folder in (package.tests, package.path / "benchmarks"):
        for path in sorted(folder.rglob("*.py")):
            yield SourceFile(package, path, path.stem, in_source=False)


def _check(file: SourceFile, imported: Import, packages: Sequence[Package]) -> Iterator[Violation]:
    others = [package for package in packages if package != file.package]
    sibling = next((other for other in others if other.module == imported.top), None)
    if sibling is not None:
        message = _sibling_fault(sibling, imported)
        if message:
            yield Violation(file.path, imported.line, message)
    if file.in_source and imported.at_import_time and not _may_import_extras(file.package, file.module):
        message = _import_time_fault(file, imported, sibling)
        if message:
            yield Violation(file.path, imported.line, message)


def _sibling_fault(sibling: Package, imported: Import) -> str | None:
    if sibling.name != CORE:
        return f"imports {imported.module}: packages reach each other only through {CORE}"
    inside = _submodule_named(sibling, imported)
    if inside in PUBLIC_CORE_MODULES:
        return None
    return f"imports {inside}, which is private to {CORE}: use one of {', '.join(PUBLIC_CORE_MODULES)}"


def _submodule_named(package: Package, imported: Import) -> str:
    """What an import reaches: `from a import b` reaches a.b when b is a module that `a` does not export."""
    if imported.name is None:
        return imported.module
    folder = package.path / "src" / Path(*imported.module.split("."))
    is_module = (folder / f"{imported.name}.py").is_file() or (folder / imported.name).is_dir()
    if is_module and imported.name not in _exported_names(folder / "__init__.py"):
        return f"{imported.module}.{imported.name}"
    return imported.module


@cache
def _exported_names(init: Path) -> frozenset[str]:
    """The literal `__all__` of a package."""
    if not init.is_file():
        return frozenset()
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets):
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def _may_import_extras(package: Package, module: str) -> bool:
    allowed = package.settings.get("optional-import-modules", [])
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def _import_time_fault(file: SourceFile, imported: Import, sibling: Package | None) -> str | None:
    owner = sibling or (file.package if imported.top == file.package.module else None)
    if owner is not None:
        reached = _submodule_named(owner, imported)
        if _may_import_extras(owner, reached):
            return f"imports {reached} at import time, which needs an extra: import it inside a function"
        return None
    if imported.top in sys.stdlib_module_names or imported.top == "__future__":
        return None
    distribution = file.package.settings.get("import-names", {}).get(imported.top, imported.top)
    if normalized(distribution) in {requirement.name for requirement in file.package.requirements}:
        return None
    return (
        f"imports {imported.top} at import time, but {file.package.name} does not require it: import it "
        f"inside a function or under TYPE_CHECKING, or add it to `dependencies`, or name this module in "
        f"[tool.semblend] optional-import-modules"
    )


def _imports_within(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, Import, str]]:
    """Which file imports which module of the same package, also inside functions, but not for types alone."""
    modules = {file.module for file in files}
    for file in files:
        for imported in file.imports:
            named = f"{imported.module}.{imported.name}"
            target = named if named in modules else imported.module
            if not imported.for_types and target in modules and target != file.module:
                yield file, imported, target


def _cycles(files: Sequence[SourceFile]) -> Iterator[Violation]:
    edges: dict[str, set[str]] = {file.module: set() for file in files}
    for file, _, target in _imports_within(files):
        edges[file.module].add(target)
    cycle = find_cycle(edges)
    if cycle:
        path = next(file.path for file in files if file.module == cycle[0])
        yield Violation(path, 1, f"import cycle: {' -> '.join([*cycle, cycle[0]])}")


def _against_layers(package: Package, files: Sequence[SourceFile]) -> Iterator[Violation]:
    layers = layers_in(package.path.parents[1]).get(package.module)
    if layers is None:
        return
    for file, imported, target in _imports_within(files):
        why = layers.why_not(file.module, target)
        if why is not None:
            yield Violation(file.path, imported.line, why)
    for file in files:
        if file.module != package.module and layers.part_of(file.module) is None and not _is_plain(file):
            yield Violation(file.path, 1, f"{file.module} is in no layer of docs/architecture.md")


def _is_plain(file: SourceFile) -> bool:
    """A module that anybody may import, because it imports nothing of its package."""
    return not any(imported.top == file.package.module for imported in file.imports)
