"""What losing a key would cost, times the odds that it is wanted again, per byte and time of its stay."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import ClassVar, TypeAlias, cast

import numpy as np

from semblend_core.eviction.ghosts import Ghosts
from semblend_core.eviction.policy import START_WEIGHTS, Entry, EvictionPolicy, Key, Spared
from semblend_core.eviction.reuse_odds import AGE_BINS, BIN_OF_AGE, HORIZON, SLICES_PER_BUDGET, ReuseOdds

GHOSTS_PER_KEY = 4
FEWEST_GHOSTS = 1024
LEARN_FIRST, LEARN_EVERY = 64, 1024
"""Accesses before it learns for the first time, and later between two times; or a quarter of the budget, if larger."""
_KINDS = {kind: number for number, kind in enumerate(START_WEIGHTS)}
_TURNS = (1, 2, 3, 5)
"""Where classes of a conversation's turns begin."""
_PAUSES = (0, 6, 12, 24, 48)
"""Where classes of the time between two uses begin, in slices; below 0: there was one use."""
_SESSION_OF_TURN = [bisect_right(_TURNS, turn) for turn in range(_TURNS[-1] + 1)]
_CLASS_OF_PAUSE = [bisect_right(_PAUSES, pause) for pause in range(-1, _PAUSES[-1] + 1)]
Group: TypeAlias = tuple[int, int, int]
"""Keys that are worth the same: slice of their last access, row of their class, level of their price per byte."""


@dataclass(slots=True)
class _Followed:
    """A key that is held, or was not long ago."""

    row: int
    since: int
    """Slice of its last access."""
    weight: float
    """Share of its prompt: a prompt counts once, however many blocks it has."""
    uses: int
    turn: int
    """Turns of the conversation before the one that brought it."""
    now: float


class ExpectedWorth(EvictionPolicy[Key]):
    """Keeps what saves most prefill time per byte and time of its stay, by what was seen of keys like it.

    Keys are alike that have the same kind, turn of their conversation, time between their last two uses and length of
    prompt. For each such class it learns, from held and gone keys, how soon they are wanted again, if at all. What
    has had its time goes, and so does what hardly ever comes back, such as the end of a prompt. A newcomer that is
    worth less than all that is held is not admitted. Of one prompt the end goes first.
    """

    name: ClassVar[str] = "expected_worth"

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._odds = ReuseOdds()
        self._followed: dict[Key, _Followed] = {}
        self._ghosts: Ghosts[Key, _Followed] = Ghosts()
        self._groups: dict[Group, OrderedDict[Key, None]] = {}
        self._group_of: dict[Key, Group] = {}
        self._heap: list[tuple[float, Group]] = []
        self._accessed = 0
        """Bytes, by which time is counted: it passes as fast as others press in."""
        self._slice = 0
        self._learnt_in = 0
        self._accesses = 0
        self._learn_at = LEARN_FIRST

    @property
    def ghosts(self) -> int:
        return len(self._ghosts)

    def forget_ghosts(self, gone: Callable[[Key], bool] | None = None) -> None:
        for key in [key for key in self._ghosts if gone is None or gone(key)]:
            self._give_up(key)

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        aside = []
        found = None
        while self._heap and found is None:
            group = self._heap[0][1]
            members = self._groups.get(group)
            if members is None:
                heappop(self._heap)
                continue
            found = next((key for key in reversed(members) if spared is None or not spared(key)), None)
            if found is None:
                aside.append(heappop(self._heap))
        for place in aside:
            heappush(self._heap, place)
        return found

    def check_integrity(self) -> None:
        super().check_integrity()
        assert all(self._groups.values()), "an empty group is kept"
        listed = {key: group for group, keys in self._groups.items() for key in keys}
        assert listed == self._group_of, "a key is in another group"
        assert listed.keys() == self.entries.keys(), "the groups and the keys differ"
        assert self._followed.keys() == self.entries.keys() | set(self._ghosts), "somebody is followed in vain"
        assert {group for _, group in self._heap} >= self._groups.keys(), "a group cannot be found"
        assert len(self._ghosts) <= self._most_ghosts() + 1, "too many ghosts"
        self._ghosts.check_integrity()

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._access(key, entry, now)
        group = self._group_for(key, entry)
        full = self.capacity is not None and self.held + entry.bytes > self.capacity
        if full and self.may_refuse and self._worth(group) < self._lowest():
            self._ghosts.add(key, entry.bytes, self._followed[key])
            self._trim()
            return False
        self._place(key, group)
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        self._take(key)
        self._access(key, entry, now)
        self._place(key, self._group_for(key, entry))

    def _reprice(self, key: Key, entry: Entry) -> None:
        since, row, _ = self._group_of[key]
        self._take(key)
        self._place(key, (since, row, _level_of(entry.price_ms / max(1, entry.bytes))))

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        self._take(key)
        self._ghosts.add(key, entry.bytes, self._followed[key])
        if not evicted:
            self._give_up(key)
        self._trim()

    def _access(self, key: Key, entry: Entry, now: float) -> None:
        """Note who came, and how long after its last use."""
        self._pass_time(entry.bytes)
        known = self._followed.get(key)
        self._ghosts.pop(key)
        weight = entry.tokens / entry.prompt_tokens if entry.prompt_tokens > entry.tokens else 1.0
        if known is None:
            turn = self._turn_of_newcomer(entry, now)
            row = self._odds.row_of(*_class_of(entry, 1, turn, -1))
            self._followed[key] = _Followed(row, self._slice, weight, 1, turn, now)
        else:
            self._odds.end(known.row, known.since, known.weight, wanted=True)
            known.uses += 1
            known.row = row = self._odds.row_of(*_class_of(entry, known.uses, known.turn, self._slice - known.since))
            known.since, known.weight, known.now = self._slice, weight, now
        self._odds.begin(row, weight)

    def _turn_of_newcomer(self, entry: Entry, now: float) -> int:
        if entry.parent is None:
            return 0
        parent = self._followed.get(cast(Key, entry.parent))
        if parent is None:
            return 1
        came_with_it = parent.uses == 1 and parent.now == now
        return parent.turn if came_with_it else min(99, parent.turn + 1)

    def _pass_time(self, size: int) -> None:
        self._accessed += size
        self._accesses += 1
        width = max(1, (self.capacity or self.held or size) // SLICES_PER_BUDGET)
        now = max(self._slice, self._accessed // width) if self.capacity else self._slice + (self._accessed >= width)
        if now == self._slice:
            return
        if not self.capacity:
            self._accessed = 0
        self._odds.move_to(now)
        self._slice = now
        if self._accesses >= self._learn_at and now - self._learnt_in >= SLICES_PER_BUDGET // 4:
            self._odds.learn()
            self._learnt_in = now
            self._learn_at = self._accesses + min(LEARN_EVERY, self._accesses)
        self._rank_anew()

    def _group_for(self, key: Key, entry: Entry) -> Group:
        return self._slice, self._followed[key].row, _level_of(entry.price_ms / max(1, entry.bytes))

    def _rank_anew(self) -> None:
        """All groups have aged by a slice."""
        groups = list(self._groups)
        if groups:
            since, row, level = np.array(groups).T
            age_bin = BIN_OF_AGE[np.minimum(HORIZON, self._slice - since)]
            worth = self._odds.table[row, age_bin] * np.exp2(level / 2)
            self._heap = list(zip(worth.tolist(), groups, strict=True))
            heapify(self._heap)

    def _worth(self, group: Group) -> float:
        since, row, level = group
        age_bin = AGE_BINS[min(HORIZON, self._slice - since)]
        return self._odds.worth[row][age_bin] * math.exp2(level / 2)

    def _lowest(self) -> float:
        while self._heap and self._heap[0][1] not in self._groups:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else 0.0

    def _place(self, key: Key, group: Group) -> None:
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = OrderedDict()
            heappush(self._heap, (self._worth(group), group))
        members[key] = None
        self._group_of[key] = group

    def _take(self, key: Key) -> None:
        group = self._group_of.pop(key)
        members = self._groups[group]
        del members[key]
        if not members:
            del self._groups[group]

    def _most_ghosts(self) -> int:
        return max(FEWEST_GHOSTS, GHOSTS_PER_KEY * len(self.entries))

    def _trim(self) -> None:
        while len(self._ghosts) > self._most_ghosts():
            self._give_up(next(iter(self._ghosts)))

    def _give_up(self, key: Key) -> None:
        self._ghosts.pop(key)
        gone = self._followed.pop(key)
        self._odds.end(gone.row, gone.since, gone.weight, wanted=False)


@lru_cache(maxsize=4096)
def _level_of(price: float) -> int:
    """Two to each power of two."""
    return round(2 * math.log2(max(price, 1e-12)))


def _class_of(entry: Entry, uses: int, turn: int, gap: int) -> tuple[tuple[int, ...], float]:
    """The path of its class, and its odds beside others while nothing is known."""
    kind = entry.kind if entry.kind in _KINDS else "other"
    number = _KINDS[kind]
    ends = entry.position > 0 and entry.position + entry.tokens >= entry.prompt_tokens > 0
    session = _SESSION_OF_TURN[min(_TURNS[-1], turn + uses - 1)]
    pause = _CLASS_OF_PAUSE[min(_PAUSES[-1], gap) + 1]
    length = min(8, max(0, (entry.prompt_tokens or entry.tokens).bit_length() - 9))
    guess = START_WEIGHTS[kind] * (1.0 if uses == 1 else 2.0)
    return (number, 2 * session + ends, pause, length), guess
