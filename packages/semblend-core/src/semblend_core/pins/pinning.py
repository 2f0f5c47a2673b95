"""Pins: what an adapter relies upon, as one version of its engine has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from semblend_core.pins.reading import Sources, digest_of, fields_of


@dataclass(frozen=True)
class Relied:
    """Declared once by an adapter, for all versions that it supports."""

    engine: str
    """The package that is imported, such as ``vllm``."""
    distributions: tuple[str, ...]
    """Names under which it is installed."""
    folder: Path
    """Holds a JSON file per version."""
    sources: tuple[str, ...]
    """Functions and classes that are wrapped, or whose insides matter, by their dotted names."""
    fields: tuple[str, ...] = ()
    """Classes whose set of fields matters, and functions whose parameters do."""

    def pins_of(self, version: str) -> Pins | None:
        try:
            return Pins(**json.loads((self.folder / f"{version}.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def installed_in(self) -> Path | None:
        """The folder that holds the engine's package. It is found and not imported."""
        spec = find_spec(self.engine)
        return None if spec is None or spec.origin is None else Path(spec.origin).parents[1]

    def version_in(self, root: Path) -> str | None:
        """The version that lies in a folder, without what marks a build of it."""
        for distribution in metadata.distributions(path=[str(root)]):
            if distribution.metadata["Name"] in self.distributions:
                return distribution.version.split("+")[0]
        return None


@dataclass(frozen=True)
class Pins:
    version: str
    files: Mapping[str, str]
    """Digests of whole files. One that is the same byte by byte need not be parsed."""
    sources: Mapping[str, str | None]
    """Digests of definitions. None: this version has no such thing."""
    fields: Mapping[str, list[str] | None]

    def save(self, folder: Path) -> Path:
        path = folder / f"{self.version}.json"
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path


def take_pins(relied: Relied, root: Path, version: str) -> Pins:
    sources = Sources(root)
    paths = sorted(filter(None, {sources.file_of(name) for name in (*relied.sources, *relied.fields)}))
    return Pins(
        version,
        {path: digest for path in paths if (digest := sources.digest_of_file(path)) is not None},
        {name: digest_of(found) if (found := sources.find(name)) else None for name in sorted(relied.sources)},
        {name: fields_of(found) if (found := sources.find(name)) else None for name in sorted(relied.fields)},
    )
