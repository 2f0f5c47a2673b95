"""What tells the weights of one process from those of another, for namespaces that outlive a process."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def identity_of_weights(place: str | os.PathLike[str], commit: str | None = None) -> str:
    """A word for the weights at ``place``: another one as soon as a checkpoint there is replaced.

    ``place`` is a file or folder, told by its files' names, sizes and times, or the name under which a hub keeps them,
    told by ``commit``, the revision which that name stood for. What nothing tells gets a random word: its KV serves the
    process that computed it, and is never found by another.
    """
    files = _files_of(Path(place))
    if any(path.suffix in WEIGHTS for path in files):
        states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        return hashlib.blake2b(repr(states).encode(), digest_size=8).hexdigest()
    return commit or os.urandom(8).hex()


def _files_of(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        return []
    return sorted(path for path in place.rglob("*") if path.suffix in (*WEIGHTS, ".json") and path.is_file())
