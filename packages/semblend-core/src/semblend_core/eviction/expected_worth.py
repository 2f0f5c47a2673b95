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

from semblend_core.eviction.policy import START_WEIGHTS, Entry, EvictionPolicy, Key, Spared
from semblend_core.eviction.reuse_odds import AGE_BINS, BIN_OF_AGE, HORIZON, SLICES_PER_BUDGET, ReuseOdds

GHOSTS_PER_KEY = 4
FEWEST_GHOSTS = 1024
LEARN_FIRST, LEARN_EVERY = 64, 1024
"""Accesses before it learns for the first time, and later between two times; or a quarter of the budget, if larger."""
_KINDS = {kind: number for number, kind in enumerate(START_WEIGHTS)}
_OTHER, _WEIGHTS = _KINDS["other"], tuple(START_WEIGHTS.values())
_TURNS = (1, 2, 3, 5)
"""Where classes of a conversation's turns begin."""
_PAUSES = (0, 6, 12, 24, 48)
"""Where classes of the time between two uses begin, in slices; below 0: there was one use."""
_FIRST_USE = -1
_SESSION_OF_TURN = [bisect_right(_TURNS, turn) for turn in range(_TURNS[-1] + 1)]
_CLASS_OF_PAUSE = [bisect_right(_PAUSES, pause) for pause in range(_FIRST_USE, _PAUSES[-1] + 1)]
Group: TypeAlias = tuple[int, int, int]
"""Keys that are worth the same: slice of their last access, row of their class, level of their price per byte."""


@dataclass(slots=True)
class _Followed:
    """A key that is held, or was not long ago."""

    since: int
    """Slice of its last access."""
    row: int
    level: int
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
        self._odds = ReuseOdds(_guess_of)
        self._held: dict[Key, _Followed] = {}
        self._ghosts: OrderedDict[Key, _Followed] = OrderedDict()
        """Those that went or were refused, in that order."""
        self._groups: dict[Group, OrderedDict[Key, None]] = {}
        self._heap: list[tuple[float, Group]] = []
        self._width = None if capacity is None else max(1, capacity // SLICES_PER_BUDGET)
        """Bytes that are accessed in one slice; None: it goes by what is held."""
        self._accessed = 0
        """Bytes in this slice, by which time is counted: it passes as fast as others press in."""
        self._slice = 0
        self._learnt_in = 0
        self._accesses = 0
        self._learn_at = LEARN_FIRST

    @property
    def ghosts(self) -> int:
        return len(self._ghosts)

    def forget_ghosts(self, gone: Callable[[Key], bool] | None = None) -> None:
        for key in [key for key in self._ghosts if gone is None or gone(key)]:
            self._give_up(self._ghosts.pop(key))

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
        assert listed == {key: _group_of(known) for key, known in self._held.items()}, "a key is in another group"
        assert listed.keys() == self.entries.keys(), "the groups and the keys differ"
        assert not self._ghosts.keys() & self.entries.keys(), "a ghost is held"
        assert {group for _, group in self._heap} >= self._groups.keys(), "a group cannot be found"
        assert len(self._ghosts) <= self._most_ghosts() + 1, "too many ghosts"

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._pass_time(entry.bytes)
        known = self._ghosts.pop(key, None)
        if known is None:
            turn = self._turn_of_newcomer(entry, now)
            row = self._odds.row_of(_class_of(entry, turn, _FIRST_USE))
            known = _Followed(self._slice, row, _level_of(entry), _weight_of(entry), 1, turn, now)
            self._odds.begin(row, known.weight)
        else:
            self._use(known, entry, now)
        full = self.capacity is not None and self.held + entry.bytes > self.capacity
        if full and self.may_refuse and self._worth(_group_of(known)) < self._lowest():
            self._ghosts[key] = known
            self._trim()
            return False
        self._held[key] = known
        self._place(key, known)
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        known = self._held[key]
        self._take(key, known)
        self._pass_time(entry.bytes)
        self._use(known, entry, now)
        self._place(key, known)

    def _reprice(self, key: Key, entry: Entry) -> None:
        known = self._held[key]
        self._take(key, known)
        known.level = _level_of(entry)
        self._place(key, known)

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        known = self._held.pop(key)
        self._take(key, known)
        if evicted:
            self._ghosts[key] = known
        else:
            self._give_up(known)
        self._trim()

    def _use(self, known: _Followed, entry: Entry, now: float) -> None:
        """It was wanted again: note how long after its last use, and which class it is of now."""
        odds, moment, since = self._odds, self._slice, known.since
        odds.end(known.row, since, known.weight, wanted=True)
        known.row = odds.row_of(_class_of(entry, known.turn + known.uses, moment - since))
        known.uses += 1
        known.since, known.level, known.weight, known.now = moment, _level_of(entry), _weight_of(entry), now
        odds.begin(known.row, known.weight)

    def _turn_of_newcomer(self, entry: Entry, now: float) -> int:
        if entry.parent is None:
            return 0
        key = cast(Key, entry.parent)
        parent = self._held.get(key) or self._ghosts.get(key)
        if parent is None:
            return 1
        came_with_it = parent.uses == 1 and parent.now == now
        return parent.turn if came_with_it else min(99, parent.turn + 1)

    def _pass_time(self, size: int) -> None:
        self._accessed += size
        self._accesses += 1
        width = self._width or max(1, (self.held or size) // SLICES_PER_BUDGET)
        if self._accessed < width:
            return
        passed, self._accessed = divmod(self._accessed, width) if self._width else (1, 0)
        self._slice += passed
        self._odds.move_to(self._slice)
        if self._accesses >= self._learn_at and self._slice - self._learnt_in >= SLICES_PER_BUDGET // 4:
            self._odds.learn()
            self._learnt_in = self._slice
            self._learn_at = self._accesses + min(LEARN_EVERY, self._accesses)
        self._rank_anew()

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

    def _place(self, key: Key, known: _Followed) -> None:
        group = _group_of(known)
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = OrderedDict()
            heappush(self._heap, (self._worth(group), group))
        members[key] = None

    def _take(self, key: Key, known: _Followed) -> None:
        group = _group_of(known)
        members = self._groups[group]
        del members[key]
        if not members:
            del self._groups[group]

    def _most_ghosts(self) -> int:
        return max(FEWEST_GHOSTS, GHOSTS_PER_KEY * len(self.entries))

    def _trim(self) -> None:
        while len(self._ghosts) > self._most_ghosts():
            self._give_up(self._ghosts.popitem(last=False)[1])

    def _give_up(self, gone: _Followed) -> None:
        self._odds.end(gone.row, gone.since, gone.weight, wanted=False)


def _group_of(known: _Followed) -> Group:
    return known.since, known.row, known.level


def _weight_of(entry: Entry) -> float:
    return entry.tokens / entry.prompt_tokens if entry.prompt_tokens > entry.tokens else 1.0


def _level_of(entry: Entry) -> int:
    return _level_of_price(entry.price_ms / max(1, entry.bytes))


@lru_cache(maxsize=4096)
def _level_of_price(price: float) -> int:
    """Two to each power of two."""
    return round(2 * math.log2(max(price, 1e-12)))


def _class_of(entry: Entry, turn: int, gap: int) -> tuple[int, int, int, int]:
    """The path of its class. ``turn``: of the conversation, this access included. ``gap``: -1 for the first use."""
    tokens, prompt_tokens, position = entry.tokens, entry.prompt_tokens, entry.position
    ends = position > 0 and position + tokens >= prompt_tokens > 0
    session = _SESSION_OF_TURN[min(_TURNS[-1], turn)]
    pause = _CLASS_OF_PAUSE[min(_PAUSES[-1], gap) + 1]
    length = min(8, max(0, (prompt_tokens or tokens).bit_length() - 9))
    return _KINDS.get(entry.kind, _OTHER), 2 * session + ends, pause, length


def _guess_of(path: tuple[int, ...]) -> float:
    kind, _, pause, _ = path
    return _WEIGHTS[kind] * (1.0 if pause == _CLASS_OF_PAUSE[0] else 2.0)
