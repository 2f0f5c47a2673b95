"""What an engine keeps by itself: KV of served prompts, found again by an exact prefix of whole blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from semblend_core import TokenIds

if TYPE_CHECKING:
    from semblend_core.kv import DonorKv


class PrefixCache:
    """The longest exact prefix in whole blocks. Holds whatever it is given: it lives as long as one item."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._entries: list[tuple[TokenIds, DonorKv]] = []

    def publish(self, tokens: TokenIds, kv: DonorKv) -> None:
        """Keep ``kv``, computed for ``tokens``: it must be exact."""
        self._entries.append((tokens[: kv.tokens], kv))

    def match(self, tokens: TokenIds) -> tuple[int, DonorKv | None]:
        """How many leading tokens are covered, and by what. At least the last token is left to compute."""
        length, found = 0, None
        for held, kv in self._entries:
            common = whole_blocks(min(common_prefix(tokens, held), tokens.size - 1), self._block_size)
            if common > length:
                length, found = common, kv
        return length, found


class DonorMemory:
    """Captured KV by prompt, so that items with the same donor prefill it once. The least recently used goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: OrderedDict[bytes, DonorKv] = OrderedDict()

    def get(self, tokens: TokenIds, compute: Callable[[], DonorKv]) -> DonorKv:
        key = tokens.tobytes()
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        kv = compute()
        self._held[key] = kv
        self._bytes += kv.nbytes
        while self._bytes > self._max_bytes and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1].nbytes
        return kv


def common_prefix(one: TokenIds, other: TokenIds) -> int:
    length = min(one.size, other.size)
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if different.size else length


def whole_blocks(tokens: int, block_size: int) -> int:
    return tokens // block_size * block_size
