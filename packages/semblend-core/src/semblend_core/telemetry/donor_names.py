"""What audit records call donors.

A donor's own id is a hash of its tokens: whoever reads it can test a guess of the whole prompt. Records carry a hash of
the id instead, under a key that this process has and never writes. So one donor has one name in the records of one
process, nobody can test a guess against them, and after a restart names are others.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any


class DonorNames:
    def __init__(self) -> None:
        self._key = os.urandom(32)

    def of(self, donor_id: str) -> str:
        raw = donor_id.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(raw, key=self._key, digest_size=16).hexdigest()

    def renamed(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with every donor's id replaced. Changes it in place."""
        if isinstance(record.get("donor_id"), str):
            record["donor_id"] = self.of(record["donor_id"])
        if isinstance(record.get("donors"), list | tuple):
            record["donors"] = [self.of(donor_id) for donor_id in record["donors"]]
        return record
