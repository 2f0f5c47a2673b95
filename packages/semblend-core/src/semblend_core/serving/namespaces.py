"""One function from a request to its namespace, for capture and lookup alike."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from typing import Any

from semblend_core.contract import Namespace

MOST_REMEMBERED = 4096


class Namespaces:
    def __init__(self, **shared: Any) -> None:
        """``shared``: the fields of :class:`Namespace` that are the same for all requests of this engine."""
        self._shared = shared
        self._epoch = "start"
        self._known: OrderedDict[tuple[str | None, bytes | None], Namespace] = OrderedDict()
        """By adapter and a hash of the salt: clients choose salts, and their length."""

    def of(self, adapter: str | None, salt: str | None) -> Namespace:
        known = (adapter, None if salt is None else _hash_of(salt))
        namespace = self._known.get(known)
        if namespace is None:
            extras = (*self._shared.get("extras", ()), ("epoch", self._epoch))
            namespace = Namespace(**(self._shared | {"extras": extras}), adapter=adapter, salt=salt)
            self._known[known] = namespace
            while len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        return namespace

    def new_weights(self, epoch: str | None = None) -> None:
        """What was computed until now is another model's. Random, so that no other process takes it for its own.

        ``epoch``: what stands for the weights from now on, where several processes must have one name for them.
        """
        self._epoch = epoch or os.urandom(8).hex()
        self._known.clear()


def _hash_of(salt: str) -> bytes:
    return hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
