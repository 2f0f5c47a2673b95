"""Save the donors' tokens and find them again after a restart.

A snapshot says what was discoverable; whether a donor's KV is still there is for its keeper to say, so ``restore``
asks before it registers each one. Written beside the old file, then put in its place: a crash leaves one whole file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from semblend_core.donors.registry import DonorRegistry

_MAGIC = b"semblend-donors-v1\n"


class SnapshotError(ValueError):
    """A file that is not a whole snapshot of this version."""


def save_snapshot(registry: DonorRegistry, path: str | os.PathLike[str]) -> int:
    """Write all donors to ``path`` and return their number."""
    donors = registry.export()
    header = json.dumps([[r.namespace, r.donor_id, r.tokens] for r, _ in donors]).encode()
    tokens = b"".join(ids.astype("<i4").tobytes() for _, ids in donors)
    body = len(header).to_bytes(8, "little") + header + tokens
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".partial")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return len(donors)


def restore_snapshot(
    registry: DonorRegistry,
    path: str | os.PathLike[str],
    still_kept: Callable[[str, str], bool] = lambda namespace, donor_id: True,
) -> int:
    """Register the snapshot's donors for which ``still_kept(namespace digest, donor_id)`` holds; returns how many."""
    content = Path(path).read_bytes()
    checksum_end = len(_MAGIC) + 32
    if not content.startswith(_MAGIC):
        raise SnapshotError(f"{path} is not a donor snapshot of this version; delete it to start empty")
    body = content[checksum_end:]
    if hashlib.sha256(body).digest() != content[len(_MAGIC) : checksum_end]:
        raise SnapshotError(f"{path} is damaged (its checksum does not match); delete it to start empty")
    header_end = 8 + int.from_bytes(body[:8], "little")
    restored, offset = 0, header_end
    for namespace, donor_id, count in json.loads(body[8:header_end]):
        tokens = np.frombuffer(body, "<i4", count, offset).astype(np.int32)
        offset += 4 * count
        if still_kept(namespace, donor_id):
            reason, _ = registry.register(namespace, donor_id, tokens)
            restored += reason is None
    return restored
