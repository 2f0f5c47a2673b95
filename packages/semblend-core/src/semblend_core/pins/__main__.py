"""Writes an adapter's pins: ``python -m semblend_core.pins semblend_vllm.compat.relied [--sources FOLDER]``."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from semblend_core.pins.pinning import Relied, take_pins


def main() -> int:
    parser = argparse.ArgumentParser(prog="semblend_core.pins", description="Write the pins of an engine's version.")
    parser.add_argument("module", help="the adapter's module that declares RELIED")
    parser.add_argument("--sources", type=Path, help="a folder with the engine's package; default: the installed one")
    given = parser.parse_args()
    relied: Relied = importlib.import_module(given.module).RELIED
    root: Path | None = given.sources or relied.installed_in()
    version = None if root is None else relied.version_in(root)
    if root is None or version is None:
        print(f"{root or 'this environment'} holds no {relied.engine} with its metadata", file=sys.stderr)
        return 1
    pins = take_pins(relied, root, version)
    print(f"{pins.save(relied.folder)}: {len(pins.sources)} sources, {len(pins.fields)} sets of fields")
    for name in (name for part in (pins.sources, pins.fields) for name, pinned in part.items() if pinned is None):
        print(f"{relied.engine} {version} has no {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
