"""How soon keys of one class are wanted again, learnt from all that is seen, and what a place for them is worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Table: TypeAlias = npt.NDArray[np.float64]
SLICES_PER_BUDGET = 16
"""Ages are counted in slices: a sixteenth of the budget, accessed."""
HORIZON = 256
"""Slices after which nobody is waited for."""
AGES = np.unique(np.round(1.22 ** np.arange(0, 29)).astype(np.int64))
AGES = np.concatenate([[0], AGES[AGES < HORIZON]])
"""The slice with which each bin of ages begins."""
BIN_OF_AGE: npt.NDArray[np.int64] = np.searchsorted(AGES, np.arange(HORIZON + 1), side="right") - 1
AGE_BINS: tuple[int, ...] = tuple(BIN_OF_AGE.tolist())
"""The same, for one at a time."""
WIDTHS = np.diff(np.append(AGES, HORIZON)).astype(np.float64)
TRUST = 12.0
"""A class is believed as much as the one that holds it once this many of its prompts were seen at an age."""
FIRST_GUESS = 0.02
"""Odds of being wanted again, per bin of ages, before anything is known. Bins widen with age: recency counts."""


class ReuseOdds:
    """Classes are paths in a tree, such as (kind, turn, length). Each leans on the one above as far as it is new."""

    def __init__(self, guess_of: Callable[[tuple[int, ...]], float]) -> None:
        """``guess_of``: the odds of a class beside others while nothing is known."""
        self._guess_of = guess_of
        self._rows: dict[tuple[int, ...], int] = {}
        self._parents: list[list[int]] = []
        """Of each row, its place in each level above; the levels are numbered apart."""
        self._levels: list[dict[tuple[int, ...], int]] = []
        self._guesses: list[float] = []
        # Lists: every access changes a few numbers of these, which numpy takes five times as long for.
        self._wanted: list[list[float]] = []
        """Weight of those that were wanted again, by row and bin of ages."""
        self._ended: list[list[float]] = []
        """Weight of those that were wanted again, or no longer followed, by row and bin of ages."""
        self._waiting: list[list[float]] = [[] for _ in range(HORIZON)]
        """Weight of those that are followed, by the slice of their last access, modulo the horizon, and row."""
        self.worth: list[list[float]] = []
        """Hits per slice that a place is worth, by row and bin of ages. A class is welcome until it is known."""
        self._table: Table | None = None
        self._slice = 0

    @property
    def table(self) -> Table:
        """What places are worth, for many at a time."""
        if self._table is None:
            self._table = np.array(self.worth)
        return self._table

    def row_of(self, path: tuple[int, ...]) -> int:
        """The number of a class."""
        row = self._rows.get(path)
        return self._add(path) if row is None else row

    def begin(self, row: int, weight: float) -> None:
        """One more of this class was accessed now."""
        self._waiting[self._slice % HORIZON][row] += weight

    def end(self, row: int, since: int, weight: float, *, wanted: bool) -> None:
        """One whose last access was in slice ``since`` is wanted again, or no longer followed."""
        age = self._slice - since
        if age >= HORIZON:
            return  # It was given up when the horizon passed it.
        self._waiting[since % HORIZON][row] -= weight
        age_bin = AGE_BINS[age]
        self._ended[row][age_bin] += weight
        if wanted:
            self._wanted[row][age_bin] += weight

    def move_to(self, now: int) -> None:
        """Time passes; whoever reaches the horizon is given up."""
        for each in range(self._slice + 1, min(now, self._slice + HORIZON) + 1):
            waiting = self._waiting[each % HORIZON]
            for row, weight in enumerate(waiting):
                if weight:
                    self._ended[row][-1] += weight
                    waiting[row] = 0.0
        self._slice = now

    def learn(self) -> None:
        """Work out anew what places are worth."""
        if self._rows:
            self._table = _index_of(self._odds())
            self.worth = self._table.tolist()

    def _odds(self) -> Table:
        """Of being wanted again within a bin of ages, for who has got there, by row."""
        slices = np.arange(self._slice - HORIZON + 1, self._slice + 1)
        ages = BIN_OF_AGE[self._slice - slices]
        rows = len(self._rows)
        waiting = np.zeros((AGES.size, rows))
        np.add.at(waiting, ages, np.array(self._waiting)[slices % HORIZON])
        waiting = waiting.T
        reached = np.cumsum((np.array(self._ended) + waiting)[:, ::-1], axis=1)[:, ::-1] - 0.5 * waiting
        parents = np.array(self._parents)
        odds = np.full((1, AGES.size), FIRST_GUESS)
        above = np.zeros(len(self._levels[0]), np.int64)
        guesses, seen = np.array(self._guesses), np.array(self._wanted)
        for level, members in enumerate(self._levels):
            wanted, risked = np.zeros((len(members), AGES.size)), np.zeros((len(members), AGES.size))
            np.add.at(wanted, parents[:, level], seen)
            np.add.at(risked, parents[:, level], reached)
            above = np.zeros(len(members), np.int64)
            if level:
                above[parents[:, level]] = parents[:, level - 1]
            base = odds[above]
            if level == 1:
                guess = np.ones(len(members))
                guess[parents[:, level]] = guesses
                base = np.minimum(0.9, base * guess[:, None])
            odds = np.clip((wanted + TRUST * base) / (risked + TRUST), 0.0, 0.999)
        table: Table = odds[parents[:, -1]]
        return table

    def _add(self, path: tuple[int, ...]) -> int:
        row = self._rows[path] = len(self._rows)
        while len(self._levels) <= len(path):
            self._levels.append({})
        self._parents.append([level.setdefault(path[:depth], len(level)) for depth, level in enumerate(self._levels)])
        self._guesses.append(self._guess_of(path))
        bins = AGES.size
        self._wanted.append([0.0] * bins)
        self._ended.append([0.0] * bins)
        self.worth.append([1.0] * bins)
        self._table = None
        for waiting in self._waiting:
            waiting.append(0.0)
        return row


def _index_of(odds: Table) -> Table:
    """The best ratio of hits to space and time, over all moments at which one could give up: Gittins' index."""
    best = np.zeros_like(odds)
    for start in range(odds.shape[1]):
        alive = np.ones(odds.shape[0])
        hits = np.zeros(odds.shape[0])
        spent = np.zeros(odds.shape[0])
        for later in range(start, odds.shape[1]):
            chance = odds[:, later]
            hits += alive * chance
            spent += alive * WIDTHS[later] * (1 - chance / 2)
            alive *= 1 - chance
            best[:, start] = np.maximum(best[:, start], hits / spent)
    return best
