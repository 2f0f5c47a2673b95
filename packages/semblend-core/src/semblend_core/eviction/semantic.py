"""Policies that weigh a key by what its text is: a system prompt is worth more than a question."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

from semblend_core.eviction.frequency import ScoredPolicy
from semblend_core.eviction.ghosts import FEWEST, Ghosts
from semblend_core.eviction.policy import START_WEIGHTS, Entry, EvictionPolicy, Key, Spared
from semblend_core.eviction.ranked import Ranking

FADING_S = 60.0
LEAST_FRESH = 0.05
STALE_AFTER_S = -FADING_S * math.log(LEAST_FRESH)
"""From this age on a key's freshness no longer falls."""
IDLE = 0.995
LEAST_WEIGHT, MOST_WEIGHT = 0.2, 5.0


def kind_of(entry: Entry) -> str:
    return entry.kind if entry.kind in START_WEIGHTS else "other"


class StaticSemantic(ScoredPolicy[Key]):
    """Weight of the kind x uses (logarithm) x prefill time saved, per square root of its tokens."""

    name: ClassVar[str] = "static_semantic"

    def score(self, entry: Entry, uses: int) -> float:
        worth = START_WEIGHTS[kind_of(entry)] * max(1.0, math.log1p(uses)) * max(1.0, entry.saved_ms)
        return worth / max(1.0, math.sqrt(entry.tokens))


class _Kind(Ranking[Key]):
    """The keys of one kind. Fresh ones fade at one rate, so their order holds while time passes; stale ones stand."""

    def __init__(self) -> None:
        super().__init__()
        self.stale: Ranking[Key] = Ranking()


class AdaptiveSemantic(EvictionPolicy[Key]):
    """Weight of the kind x uses x freshness x prefill time saved, hardly less for long keys. The weights learn.

    A key that comes back after it went raises its kind's weight, a hit raises it a little, and a kind that nobody uses
    sinks with every moment (distinct ``now``) that passes. ``weights`` shows them.
    """

    name: ClassVar[str] = "adaptive_semantic"

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self.weights = dict(START_WEIGHTS)
        self._kinds: dict[str, _Kind[Key]] = {kind: _Kind() for kind in START_WEIGHTS}
        self._kind_of: dict[Key, str] = {}
        self._uses: dict[Key, int] = {}
        self._by_use: OrderedDict[Key, float] = OrderedDict()
        """Fresh keys with the moment of their last use, the oldest first."""
        self._ghosts: Ghosts[Key, str] = Ghosts()
        self._now = 0.0
        self._idle = set(START_WEIGHTS)

    @property
    def ghosts(self) -> int:
        return len(self._ghosts)

    def forget_ghosts(self, gone: Callable[[Key], bool] | None = None) -> None:
        self._ghosts.forget(gone)

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        best, found = math.inf, None
        for kind, keys in self._kinds.items():
            if not keys and not keys.stale:
                continue
            weight = self.weights[kind]
            fresh, stale = keys.first(spared), keys.stale.first(spared)
            if fresh is not None:
                score = weight * math.exp(keys.score_of(fresh) - self._now / FADING_S)
                if score < best:
                    best, found = score, fresh
            if stale is not None:
                score = weight * LEAST_FRESH * math.exp(keys.stale.score_of(stale))
                if score < best:
                    best, found = score, stale
        return found

    def check_integrity(self) -> None:
        super().check_integrity()
        listed = [key for keys in self._kinds.values() for key in (*keys, *keys.stale)]
        assert len(listed) == len(self.entries), "a key is listed twice or not at all"
        assert set(listed) == set(self.entries) == set(self._uses), "the kinds and the keys differ"
        assert all(LEAST_WEIGHT <= weight <= MOST_WEIGHT for weight in self.weights.values()), (
            "a weight is out of bounds"
        )
        assert len(self._ghosts) <= max(FEWEST, len(self.entries) + 1), "too many ghosts"
        self._ghosts.check_integrity()

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._pass_to(now)
        regretted = self._ghosts.pop(key)
        if regretted is not None:
            self._raise(regretted, 0.18 + min(0.12, entry.tokens / 1000))
        self._uses[key] = 1
        self._place(key, entry)
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        self._pass_to(now)
        self._raise(kind_of(entry), 0.01 + min(0.04, entry.tokens / 4000))
        self._uses[key] += 1
        self._take(key)
        self._place(key, entry)

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        kind = self._kind_of[key]
        self._take(key)
        del self._uses[key]
        if evicted:
            self._ghosts.add(key, entry.bytes, kind)
        self._ghosts.trim(max(FEWEST, len(self.entries)))

    def _place(self, key: Key, entry: Entry) -> None:
        kind = self._kind_of[key] = kind_of(entry)
        uses = self._uses[key]
        worth = max(1.0, 1 + math.log1p(uses) + 0.25 * uses) * max(1.0, entry.saved_ms)
        # In logarithms, and as of time 0: so what fades at one rate keeps its order, and no number overflows.
        worth = math.log(worth / max(1.0, entry.tokens**0.15))
        self._kinds[kind].place(key, worth + self._now / FADING_S)
        self._by_use[key] = self._now

    def _take(self, key: Key) -> None:
        keys = self._kinds[self._kind_of.pop(key)]
        if self._by_use.pop(key, None) is None:
            keys.stale.drop(key)
        else:
            keys.drop(key)

    def _pass_to(self, now: float) -> None:
        if now <= self._now:
            return
        for kind in self._idle:
            self.weights[kind] = max(LEAST_WEIGHT, self.weights[kind] * IDLE)
        self._idle = set(START_WEIGHTS)
        self._now = now
        while self._by_use:
            key, used = next(iter(self._by_use.items()))
            if now - used < STALE_AFTER_S:
                break
            del self._by_use[key]
            keys = self._kinds[self._kind_of[key]]
            keys.stale.place(key, keys.score_of(key) - used / FADING_S)
            keys.drop(key)

    def _raise(self, kind: str, by: float) -> None:
        self.weights[kind] = min(MOST_WEIGHT, self.weights[kind] + by)
        self._idle.discard(kind)
