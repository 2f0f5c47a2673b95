"""Manifests as bytes: sorted keys, one item a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from sembench.identity import sha256_of
from sembench.schema import ManifestItem, write_atomically


def manifest_line(item: ManifestItem) -> str:
    return json.dumps(item.model_dump(mode="json"), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def write_manifest(path: Path, items: Iterable[ManifestItem]) -> str:
    """Writes the manifest and returns its sha256."""
    write_atomically(path, "".join(manifest_line(item) + "\n" for item in items))
    return sha256_of(path)
