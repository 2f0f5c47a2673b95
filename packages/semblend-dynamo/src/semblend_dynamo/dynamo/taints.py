"""Taints by which Dynamo's own rule can be made to prefer one worker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping


class Taints:
    """A worker can be preferred where it carries a taint that no other worker carries."""

    def __init__(self, cards: Callable[[], Mapping[str, str]]) -> None:
        """``cards``: the workers' model cards as JSON, by instance id."""
        self._cards = cards
        self._read: dict[str, frozenset[str]] = {}

    def of(self, worker_id: int) -> str | None:
        cards = self._cards()
        carried = {name: self._taints(card) for name, card in cards.items()}
        counts = Counter(taint for taints in carried.values() for taint in taints)
        own = sorted(taint for taint in carried.get(str(worker_id), ()) if counts[taint] == 1)
        return own[0] if own else None

    def _taints(self, card: str) -> frozenset[str]:
        if card not in self._read:
            if len(self._read) > 4096:
                self._read.clear()
            try:
                said = (json.loads(card).get("runtime_config") or {}).get("taints") or ()
            except (ValueError, AttributeError):
                said = ()
            self._read[card] = frozenset(str(taint) for taint in said)
        return self._read[card]
