"""Fingerprints as the chains know them: of one namespace, in this process.

Nobody outside can make texts whose tags crowd one part of the table, or stand before those of another namespace. Tags
may collide all the same, as any hash may: whoever finds something by them checks its namespace.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from semblend_core.discovery.bucket_table import BucketTable, Tags
from semblend_core.discovery.fingerprint import Hashes

_POSITION_BITS = np.uint64(32)
_POSITION_MASK = np.uint64(0xFFFFFFFF)


class KeyedTags:
    """Two processes, or two namespaces, have nothing in common."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def of(self, hashes: Hashes, scope: int) -> Tags:
        secret = blake2b(scope.to_bytes(8, "little"), digest_size=12, key=self._key).digest()
        before, factor, after = np.frombuffer(secret, np.uint32)
        tags = hashes ^ before
        tags *= factor | np.uint32(1)
        tags ^= tags >> np.uint32(15)
        tags *= after | np.uint32(1)
        return BucketTable.usable(tags)

    def in_order(
        self, hashes: Hashes, positions: npt.NDArray[np.int64], scope: int
    ) -> tuple[Tags, npt.NDArray[np.int64]]:
        """Sorted by tag and, among equal tags, by position; the positions in the same order."""
        # Both in one word: sorting words is several times faster than finding a stable order.
        words = self.of(hashes, scope).astype(np.uint64)
        words <<= _POSITION_BITS
        words |= positions.view(np.uint64)
        words.sort()
        return (words >> _POSITION_BITS).astype(np.uint32), (words & _POSITION_MASK).view(np.int64)
