"""Who ran what, where: what every result file starts with."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from sembench.__about__ import __version__
from sembench.schema import InputError, ManifestItem, RunIdentity, naming, read_jsonl

RunKind = Literal["offline", "live-sglang", "live-gateway", "embedded", "load", "privacy", "noise-floor", "merged"]
_PACKAGES = ("semblend-core", "numpy", "torch", "transformers", "tokenizers", "httpx")


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def identify(
    kind: RunKind,
    manifest: Path | None,
    items: int | None,
    *,
    seed: int | None = None,
    engine: dict[str, Any] | None = None,
    serve_command: str | None = None,
    device: str | None = None,
) -> RunIdentity:
    """The identity of a run that starts now; its end is filled in when it ends."""
    return RunIdentity(
        kind=kind,
        started_at=now(),
        finished_at=None,
        manifest=str(manifest) if manifest else None,
        manifest_sha256=sha256_of(manifest) if manifest else None,
        manifest_items=items,
        command=["sembench", *sys.argv[1:]],
        seed=seed,
        versions=versions(),
        host={"platform": platform.platform(), "cpus": os.cpu_count(), "device": device or "cpu"},
        engine=engine or {},
        serve_command=serve_command,
    )


def load_manifest(path: Path, max_items: int | None = None) -> list[ManifestItem]:
    """The items of a manifest in its order; refused where it is empty or an id is there twice."""
    items = list(read_jsonl(path, ManifestItem))
    if not items:
        raise InputError(f"{path}: holds no items; write one with: sembench build --profile fixture --output {path}")
    seen: set[str] = set()
    for number, item in enumerate(items, 1):
        if item.item_id in seen:
            raise InputError(f"{path}:{number}: item_id: {item.item_id} is there twice")
        seen.add(item.item_id)
    return items[:max_items]


def sha256_of(path: Path) -> str:
    with naming(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Of sembench, Python and the packages that a result depends on, where they are installed."""
    found = {"sembench": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
