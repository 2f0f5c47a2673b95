"""Keeps sources apart while they are written: no two may share a run of text that could be a token block."""

from __future__ import annotations

from sembench.manifests.text_units import pieces

RUN = 12
"""Pieces. A block of 16 tokens covers more than that unless it is full of rare names, which do not recur."""


class Runs:
    """Every run of ``RUN`` pieces that was written so far, and whose source wrote it."""

    def __init__(self) -> None:
        self._owner: dict[int, int] = {}
        self._numbers: dict[str, int] = {}

    def numbered(self, text: str) -> list[int]:
        """The pieces of a text as numbers: their hash, unlike that of a text, is the same in every process."""
        numbers = self._numbers
        return [numbers.setdefault(piece, len(numbers)) for piece in pieces(text)]

    def free(self, codes: list[int], owner: int) -> list[int] | None:
        """The runs in numbered pieces; None where another source has one of them."""
        whole = tuple(codes)
        runs = [hash(whole[start : start + RUN]) for start in range(len(whole) - RUN + 1)]
        taken = self._owner
        for run in runs:
            if taken.get(run, owner) != owner:
                return None
        return runs

    def take(self, runs: list[int], owner: int) -> None:
        for run in runs:
            self._owner[run] = owner
