"""Donors: prompts that SGLang's exact tree holds, remembered as tokens.

Slots and nodes of the tree go stale, so nothing of it is kept: whoever needs a donor's KV matches its tokens again.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from semblend_core import Namespace, TokenIds
from semblend_sglang.requests import TreeKey

DonorName = tuple[str, str]
"""Digest of the namespace and donor id."""


@dataclass(frozen=True, slots=True)
class Donor:
    donor_id: str
    namespace: Namespace
    key: TreeKey
    tokens: array[int]
    """As SGLang's tree wants them."""

    @property
    def name(self) -> DonorName:
        return (self.namespace.digest, self.donor_id)


class DonorBook:
    """The known donors, least recently used first. ``forget`` is told what no longer fits."""

    def __init__(self, most: int, forget: Callable[[Donor], None]) -> None:
        self._most, self._forget = most, forget
        self._donors: OrderedDict[DonorName, Donor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._donors)

    def add(self, donor_id: str, namespace: Namespace, key: TreeKey, token_ids: TokenIds) -> Donor:
        tokens = array("q")
        tokens.frombytes(token_ids.astype(np.int64).tobytes())
        donor = Donor(donor_id, namespace, key, tokens)
        self._donors[donor.name] = donor
        while len(self._donors) > self._most:
            self.drop(next(iter(self._donors)))
        return donor

    def get(self, namespace: Namespace, donor_id: str) -> Donor | None:
        """Counts as a use."""
        name = (namespace.digest, donor_id)
        donor = self._donors.get(name)
        if donor is not None:
            self._donors.move_to_end(name)
        return donor

    def drop(self, name: DonorName) -> None:
        donor = self._donors.pop(name, None)
        if donor is not None:
            self._forget(donor)

    def clear(self) -> None:
        for name in list(self._donors):
            self.drop(name)
