"""One function from a request to its namespace, for capture and lookup alike."""

from __future__ import annotations

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
        self._known: OrderedDict[tuple[str | None, str | None], Namespace] = OrderedDict()

    def of(self, adapter: str | None, salt: str | None) -> Namespace:
        namespace = self._known.get((adapter, salt))
        if namespace is None:
            extras = (*self._shared.get("extras", ()), ("epoch", self._epoch))
            namespace = Namespace(**(self._shared | {"extras": extras}), adapter=adapter, salt=salt)
            self._known[adapter, salt] = namespace
            while len(self._known) > MOST_REMEMBERED:
                self._known.popitem(last=False)
        return namespace

    def new_weights(self) -> None:
        """What was computed until now is another model's. Random, so that no other process takes it for its own."""
        self._epoch = os.urandom(8).hex()
        self._known.clear()
