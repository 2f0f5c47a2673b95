"""The arrows that docs/architecture.md draws, held to.

A fence named ``layers MODULE`` in that page lists the parts of a package, one layer a line, what others build on first.
A part imports from itself and from the lines above it; nothing beside it and nothing below it. After ``beside:`` come
parts that may import every layer, and that no layer imports.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from semblend_tools.errors import ToolError

PAGE = Path("docs") / "architecture.md"
_FENCE = re.compile(r"^```layers ([\w.]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BESIDE = "beside:"


@dataclass(frozen=True)
class Layers:
    """The parts of one package by their height; those beside it stand above all."""

    module: str
    heights: dict[str, int]
    beside: frozenset[str]

    def part_of(self, module: str) -> str | None:
        """The part that a module belongs to; None for the package's own file."""
        inside = module.removeprefix(f"{self.module}.")
        known = [part for part in self.heights if inside == part or inside.startswith(f"{part}.")]
        return max(known, key=len, default=None) if inside != module else None

    def why_not(self, importer: str, imported: str) -> str | None:
        """Why ``importer`` may not import ``imported``, both modules of this package; None where it may."""
        from_part, to_part = self.part_of(importer), self.part_of(imported)
        if from_part is None or to_part is None or from_part == to_part or from_part in self.beside:
            return None
        if self.heights[to_part] < self.heights[from_part]:
            return None
        return f"imports {imported} against the layers of {PAGE.as_posix()}: `{from_part}` stands not above `{to_part}`"


def layers_in(root: Path) -> dict[str, Layers]:
    """By package module. Empty where there is no such page."""
    page = root / PAGE
    return {found.module: found for found in _read(page.read_text())} if page.is_file() else {}


def _read(text: str) -> Iterator[Layers]:
    for module, body in _FENCE.findall(text):
        lines = [line.strip() for line in body.splitlines() if line.strip()]
        beside = {part for line in lines if line.startswith(_BESIDE) for part in _parts(line.removeprefix(_BESIDE))}
        layered = [_parts(line) for line in lines if not line.startswith(_BESIDE)]
        heights = {part: height for height, parts in enumerate(layered) for part in parts}
        if not heights:
            raise ToolError(f"{PAGE.as_posix()}: the layers of {module} are empty")
        yield Layers(module, heights | dict.fromkeys(beside, len(layered)), frozenset(beside))


def _parts(line: str) -> list[str]:
    return [part.strip() for part in line.split(",") if part.strip()]
