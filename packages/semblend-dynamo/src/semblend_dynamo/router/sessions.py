"""Session affinity: a conversation stays with the replica that holds its beginning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from semblend_dynamo.router.asked import Asked
from semblend_dynamo.router.replicas import Replica


class Sessions:
    """The newest sessions and where each was served last. A session belongs to its circle: names may repeat."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._replicas: OrderedDict[tuple[str | None, str], str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def find(self, asked: Asked, replicas: Sequence[Replica]) -> Replica | None:
        name = self._replicas.get((asked.circle, asked.session)) if asked.session else None
        return next((each for each in replicas if each.name == name), None)

    def note(self, asked: Asked, replica: Replica) -> None:
        if not asked.session or not self._limit:
            return
        key = (asked.circle, asked.session)
        self._replicas[key] = replica.name
        self._replicas.move_to_end(key)
        if len(self._replicas) > self._limit:
            self._replicas.popitem(last=False)
