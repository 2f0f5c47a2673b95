"""How often waiting requests are asked about again."""

from __future__ import annotations


class Repeats:
    """The first question is always asked. With a long queue not everybody asks again whenever there is more to be
    found: those in front come first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._generation, self._asked = 0, 0

    def may_ask(self, first: bool, generation: int) -> bool:
        """``generation``: grows when there is more to be found."""
        if first:
            return True
        if generation != self._generation:
            self._generation, self._asked = generation, 0
        if self._asked >= self._most:
            return False
        self._asked += 1
        return True

    def one_less_in_front(self) -> None:
        """Somebody was admitted, so somebody else has come to the front."""
        self._asked = max(0, self._asked - 1)
