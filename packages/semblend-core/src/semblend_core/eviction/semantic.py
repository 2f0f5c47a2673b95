"""Policies that weigh a key by what its text is: a system prompt is worth more than a question."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Used:
    """A key that is held."""

    kind: str
    uses: int
    now: float
    """When it was last used."""


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
        self._fresh: OrderedDict[Key, _Used] = OrderedDict()
        """In the order of their last use."""
        self._stale: dict[Key, _Used] = {}
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
            if keys.places and (fresh := keys.first(spared)) is not None:
                score = self.weights[kind] * math.exp(keys.score_of(fresh) - self._now / FADING_S)
                if score < best:
                    best, found = score, fresh
            if keys.stale.places and (stale := keys.stale.first(spared)) is not None:
                score = self.weights[kind] * LEAST_FRESH * math.exp(keys.stale.score_of(stale))
                if score < best:
                    best, found = score, stale
        return found

    def check_integrity(self) -> None:
        super().check_integrity()
        fresh = {key: kind for kind, keys in self._kinds.items() for key in keys}
        stale = {key: kind for kind, keys in self._kinds.items() for key in keys.stale}
        assert fresh == {key: known.kind for key, known in self._fresh.items()}, "a fresh key is of another kind"
        assert stale == {key: known.kind for key, known in self._stale.items()}, "a stale key is of another kind"
        assert not self._fresh.keys() & self._stale.keys(), "a key is fresh and stale"
        assert self._fresh.keys() | self._stale.keys() == self.entries.keys(), "the kinds and the keys differ"
        assert all(LEAST_WEIGHT <= weight <= MOST_WEIGHT for weight in self.weights.values()), (
            "a weight is out of bounds"
        )
        assert len(self._ghosts) <= max(FEWEST, len(self.entries) + 1), "too many ghosts"
        self._ghosts.check_integrity()

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        if now > self._now:
            self._pass_to(now)
        regretted = self._ghosts.pop(key)
        if regretted is not None:
            self._raise(regretted, 0.18 + min(0.12, entry.tokens / 1000))
        known = self._fresh[key] = _Used(kind_of(entry), 1, self._now)
        self._place(key, entry, known)
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        if now > self._now:
            self._pass_to(now)
        kind = kind_of(entry)
        self._raise(kind, 0.01 + min(0.04, entry.tokens / 4000))
        known = self._fresh.get(key)
        if known is None or known.kind != kind:
            known = self._take(key)
            known.kind = kind
            self._fresh[key] = known
        else:
            self._fresh.move_to_end(key)
        known.uses += 1
        known.now = self._now
        self._place(key, entry, known)

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        known = self._take(key)
        if evicted:
            self._ghosts.add(key, entry.bytes, known.kind)
        self._ghosts.trim(max(FEWEST, len(self.entries)))

    def _place(self, key: Key, entry: Entry, known: _Used) -> None:
        uses = known.uses
        worth = (1 + math.log1p(uses) + 0.25 * uses) * max(1.0, entry.saved_ms)
        # In logarithms, and as of time 0: so what fades at one rate keeps its order, and no number overflows.
        worth = math.log(worth / max(1.0, entry.tokens**0.15))
        self._kinds[known.kind].place(key, worth + self._now / FADING_S)

    def _take(self, key: Key) -> _Used:
        known = self._fresh.pop(key, None)
        if known is None:
            known = self._stale.pop(key)
            self._kinds[known.kind].stale.drop(key)
        else:
            self._kinds[known.kind].drop(key)
        return known

    def _pass_to(self, now: float) -> None:
        for kind in self._idle:
            self.weights[kind] = max(LEAST_WEIGHT, self.weights[kind] * IDLE)
        self._idle = set(START_WEIGHTS)
        self._now = now
        while self._fresh:
            key, known = next(iter(self._fresh.items()))
            if now - known.now < STALE_AFTER_S:
                break
            del self._fresh[key]
            self._stale[key] = known
            keys = self._kinds[known.kind]
            keys.stale.place(key, keys.score_of(key) - known.now / FADING_S)
            keys.drop(key)

    def _raise(self, kind: str, by: float) -> None:
        self.weights[kind] = min(MOST_WEIGHT, self.weights[kind] + by)
        self._idle.discard(kind)
