"""Which donors there are: their tokens in one arena, and where each of them lies.

A row of the table has a number, which is reused. The outside knows serials only, so that an answer can never be taken
for a donor that came later to the same number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend_core.contract import TokenIds
from semblend_core.discovery.fingerprint_chains import Candidates
from semblend_core.discovery.growable import ExtentAllocator, grown
from semblend_core.discovery.runs import DonorColumns, Ints

MAX_ARENA_TOKENS = 2**32 - 1
"""Offsets into the arena are 32-bit."""
ROW_BYTES = 32
"""What a donor takes beside its tokens."""


@dataclass(frozen=True, slots=True)
class Place:
    """Room for one donor: a row, a part of the arena, and arrays that are large enough for both."""

    number: int
    start: int
    length: int
    columns: DonorColumns
    scope: Ints


class DonorTable:
    """Not safe by itself: readers must be kept away while ``put`` and ``remove`` run, and other writers always."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self.columns = DonorColumns(np.zeros(0, np.int32), none, none, none)
        self.scope: Ints = none
        """Of each row, -1 where it is free."""
        self._extents = ExtentAllocator()
        self._numbers: dict[int, int] = {}
        self._pages: dict[int, npt.NDArray[np.int32]] = {}
        """What the chains keep for each donor, by number."""
        self._free_numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def nbytes(self, *, tokens_more: int = 0, donors_more: int = 0) -> int:
        """Memory that these donors take, and so many more."""
        return (self._extents.used + tokens_more) * 4 + ROW_BYTES * (len(self) + donors_more)

    def __contains__(self, serial: int) -> bool:
        return serial in self._numbers

    def number(self, serial: int) -> int:
        return self._numbers[serial]

    def tokens_of(self, serial: int) -> TokenIds:
        """Not a copy."""
        number = self._numbers[serial]
        start = self.columns.start.item(number)
        return self.columns.arena[start : start + self.columns.length.item(number)]

    def scope_of(self, serial: int) -> int:
        return self.scope.item(self._numbers[serial])

    def pages_of(self, serial: int) -> npt.NDArray[np.int32]:
        return self._pages[self._numbers[serial]]

    def bytes_of(self, serial: int) -> int:
        """Its pages not counted."""
        return 4 * self.columns.length.item(self._numbers[serial]) + ROW_BYTES

    def positions(self, found: Candidates) -> Ints:
        """Where in their donors' prompts these fingerprints stand."""
        return found.offset - self.columns.start[found.donor]

    def reserve(self, length: int) -> Place:
        """Do whatever may run out of memory. Readers are not disturbed."""
        number = self._free_numbers[-1] if self._free_numbers else len(self)
        start = self._extents.allocate(length)
        try:
            if start + length > MAX_ARENA_TOKENS:
                raise MemoryError(f"the token arena holds at most {MAX_ARENA_TOKENS} tokens")
            old, rows = self.columns, number + 1
            columns = DonorColumns(
                grown(old.arena, start + length),
                grown(old.start, rows),
                grown(old.length, rows),
                grown(old.serial, rows),
            )
            return Place(number, start, length, columns, grown(self.scope, rows))
        except BaseException:
            self._extents.free(start, length)
            raise

    def give_back(self, place: Place) -> None:
        """Nobody came to a place that was reserved."""
        self._extents.free(place.start, place.length)

    def put(self, place: Place, tokens: TokenIds, scope: int, serial: int, pages: npt.NDArray[np.int32]) -> None:
        number, start = place.number, place.start
        self.columns, self.scope = place.columns, place.scope
        self.columns.arena[start : start + tokens.size] = tokens
        self.columns.start[number], self.columns.length[number] = start, tokens.size
        self.columns.serial[number], self.scope[number] = serial, scope
        self._pages[number] = pages
        self._numbers[serial] = number
        if self._free_numbers:
            self._free_numbers.pop()

    def remove(self, serial: int) -> None:
        tokens = self.tokens_of(serial)
        tokens[:] = 0  # Prompts are not left lying around.
        number = self._numbers.pop(serial)
        self._extents.free(self.columns.start.item(number), tokens.size)
        self.columns.length[number], self.scope[number] = 0, -1
        del self._pages[number]
        self._free_numbers.append(number)

    def check_integrity(self) -> None:
        self._extents.check_integrity()
        assert self._extents.used == sum(self.columns.length.item(n) for n in self._pages), "arena does not add up"
        assert sorted(self._numbers.values()) == sorted(self._pages), "a donor has no number, or two have one"
        assert not set(self._free_numbers) & set(self._pages), "a number is free and in use"
