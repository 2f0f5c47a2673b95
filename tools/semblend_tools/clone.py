"""Where things lie in a clone, and the process environment that keeps every cache inside it."""

import os
from dataclasses import dataclass
from pathlib import Path

# Variables of the calling shell that would leak another interpreter or another hatch into ours.
_FOREIGN_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONSTARTUP", "PIP_CONSTRAINT", "UV_CONSTRAINT")


@dataclass(frozen=True)
class Clone:
    """A checkout of the workspace. Nothing is written outside `root`, unless SEMBLEND_CACHE_DIR says so."""

    root: Path

    @property
    def packages(self) -> Path:
        return self.root / "packages"

    @property
    def tools(self) -> Path:
        """Environments: the one with hatch in it, and those that hatch makes. Safe to delete."""
        return self.root / ".tools"

    @property
    def cache(self) -> Path:
        """Downloads. Safe to delete; several clones may share one through SEMBLEND_CACHE_DIR."""
        return Path(os.environ.get("SEMBLEND_CACHE_DIR") or self.root / ".cache")

    @property
    def dist(self) -> Path:
        return self.root / "dist"

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def child_environment(self) -> dict[str, str]:
        """The environment of every process we start."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _FOREIGN_VARIABLES and not name.startswith("HATCH_")
        }
        return kept | {
            "HATCH_CONFIG": str(self.tools / "hatch-config.toml"),
            "HATCH_DATA_DIR": str(self.tools / "hatch"),
            "HATCH_CACHE_DIR": str(self.cache / "hatch"),
            # Every environment is made from the interpreter that runs hatch: no surprise downloads.
            "HATCH_PYTHON": "self",
            "PIP_CACHE_DIR": str(self.cache / "pip"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "UV_CACHE_DIR": str(self.cache / "uv"),
            # Of the tens of thousands of files that an engine brings most are never imported: those that are, are
            # compiled then (so does uv by itself), and kept even where a caller's environment says otherwise.
            "PIP_COMPILE": "0",
            "PYTHONDONTWRITEBYTECODE": "",
            "SEMBLEND_CACHE_DIR": str(self.cache),
            "SEMBLEND_MODEL_CACHE": str(self.cache / "models"),
            # Whatever runs here learns its costs itself, and leaves none behind.
            "SEMBLEND_COST_DIR": "none",
        }


def this_clone() -> Clone:
    return Clone(Path(__file__).resolve().parents[2])
