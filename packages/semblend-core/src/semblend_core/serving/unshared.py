"""How many tokens donors hold together, where a beginning that several share is held once."""

from __future__ import annotations

from semblend_core.serving.prefixes import DonorName


class UnsharedTokens:
    """What each donor added to those that were there when it came.

    Where one goes whose beginning others share, that beginning is counted with none of them: too little, never too
    much.
    """

    def __init__(self) -> None:
        self._added: dict[DonorName, int] = {}
        self.total = 0

    def add(self, name: DonorName, tokens: int) -> None:
        self.remove(name)
        self._added[name] = tokens
        self.total += tokens

    def remove(self, name: DonorName) -> None:
        self.total -= self._added.pop(name, 0)

    def hand_over(self, name: DonorName, to: DonorName) -> None:
        """One that is the beginning of another goes: all it held is held by the other."""
        tokens = self._added.get(name, 0)
        self.remove(name)
        self.add(to, self._added.get(to, 0) + tokens)
