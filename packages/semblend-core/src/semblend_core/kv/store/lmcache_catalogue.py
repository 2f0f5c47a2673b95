"""Which donors lie in LMCache, by the processes that stored them: LMCache itself cannot tell."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from semblend_core.kv.store.donor_file import DonorMetadata, FileLayout, decode_metadata, encode_metadata
from semblend_core.kv.store.kv_spec import KvSpec
from semblend_core.kv.store.options import StoreDirectoryError
from semblend_core.kv.store.vocabulary import CorruptDonorError, DonorKey
from semblend_core.private_folder import OpenToOthersError, make_private

logger = logging.getLogger(__name__)

_ENDING = ".lmcache.json"


class LmcacheCatalogue:
    """A file per donor in a folder that several processes may share: the same donor has the same name in each."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.root = Path(path)
        try:
            make_private(self.root, "lmcache_path")
            self._write(self.root / f"probe-{os.getpid()}.partial", b"").unlink()
        except (OSError, OpenToOthersError) as error:
            raise StoreDirectoryError(
                f"lmcache_path={str(self.root)!r} cannot be used: {error} (SEMBLEND_STORE_LMCACHE_PATH)"
            ) from error

    def add(self, metadata: DonorMetadata) -> None:
        """Raises OSError."""
        partial = self._write(self.root / f"{metadata.stem}-{os.getpid()}.partial", encode_metadata(metadata))
        partial.replace(self._place(metadata))

    def remove(self, metadata: DonorMetadata) -> None:
        with contextlib.suppress(OSError):
            self._place(metadata).unlink()

    def scan(self) -> Iterator[DonorMetadata]:
        """The oldest first. What cannot be read is passed over. Raises OSError."""
        found = []
        for place in sorted(self.root.glob(f"*{_ENDING}")):
            try:
                found.append(decode_metadata(place.read_bytes()))
            except (OSError, CorruptDonorError) as error:
                logger.warning("SemBlend passes over %s: %s", place.name, error)
        yield from sorted(found, key=lambda metadata: metadata.born)

    def _place(self, metadata: DonorMetadata) -> Path:
        return self.root / f"{metadata.stem}{_ENDING}"

    @staticmethod
    def _write(place: Path, content: bytes) -> Path:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
        return place


def listed(key: DonorKey, spec: KvSpec, token_ids: object, born: int) -> DonorMetadata:
    """A donor as the catalogue lists it. Its checksums lie with its bytes."""
    nothing = np.zeros(FileLayout(spec).chunks, np.uint32)
    return DonorMetadata(key, 0, spec, nothing, token_ids, born)  # type: ignore[arg-type]
