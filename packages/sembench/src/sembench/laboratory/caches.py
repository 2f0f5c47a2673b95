"""Simulated caches of limited size: as a prefix cache, as a block cache, and as a cache of spans."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import ClassVar, Literal, TypeAlias

from sembench.laboratory.latency import LatencyModel, LinearLatency
from sembench.laboratory.requests import CacheRequest, chained
from sembench.laboratory.tally import Served, Tally
from semblend_core.eviction import Entry, EvictionPolicy, LeavesFirst, policy_named

Semantics: TypeAlias = Literal["prefix", "block", "span"]
Unit: TypeAlias = Literal["tokens", "blocks"]

LEAST_GONE = 1024
"""Keys that went last and are remembered to count regrets; as many as are held, if that is more."""
SEAM_TOKENS = 32
MIN_SPAN_TOKENS = 64


class SimulatedCache(ABC):
    """Serves requests one after the other from what the policy kept of those before. Holds no KV, only its sizes."""

    semantics: ClassVar[Semantics]

    def __init__(
        self, policy: EvictionPolicy[Hashable], budget: int, latency: LatencyModel, unit: Unit = "tokens"
    ) -> None:
        self.policy = policy
        self.budget = budget
        self.latency = latency
        self.unit = unit
        self.tally = Tally()
        self._gone: OrderedDict[Hashable, None] = OrderedDict()

    def serve(self, request: CacheRequest) -> Served:
        served = self._serve(request)
        tally = self.tally
        tally.add(served)
        tally.resident_blocks_max = max(tally.resident_blocks_max, len(self.policy))
        tally.remembered_blocks_max = max(tally.remembered_blocks_max, self.policy.ghosts)
        tally.utilization.add(self.policy.held / self.budget)
        self._note_weights()
        return served

    @abstractmethod
    def _serve(self, request: CacheRequest) -> Served: ...

    def _note_weights(self) -> None:
        weights = weights_of(self.policy)
        if weights is None or not self.tally.weights.wants_next:
            self.tally.weights.skip()
        else:
            self.tally.weights.add(dict(weights))

    def _served(self, request: CacheRequest, cached: int, hits: int, saved_ms: float) -> Served:
        latency = self.latency
        full_ms = latency.saved_ms(0, request.total_tokens) if latency.is_linear else _worth(request, latency)
        return Served(
            request_id=request.request_id,
            prompt_tokens=request.total_tokens,
            cached_tokens=cached,
            blocks=len(request.keys),
            block_hits=hits,
            saved_ms=saved_ms,
            full_ms=full_ms,
            ttft_ms=latency.ttft_ms(cached, request.total_tokens - cached),
            cold_ttft_ms=latency.ttft_ms(0, request.total_tokens),
        )

    def _bring_in(
        self, key: Hashable, entry: Entry, now: float, spared: Callable[[Hashable], bool] | None = None
    ) -> bool:
        """Whether ``key`` is held now. ``spared``: who may not go for it, ``key`` itself if nothing is said."""
        tally = self.tally
        if key in self._gone:
            tally.regrets += 1
            del self._gone[key]
        if entry.bytes > self.budget or not self.policy.admit(key, entry, now):
            tally.refused += 1
            return False
        while self.policy.held > self.budget:
            victim = self.policy.victim(spared or key.__eq__)
            if victim is None:
                self.policy.remove(key, evicted=False)
                tally.refused += 1
                return False
            self._evict(victim)
        return True

    def _evict(self, victim: Hashable) -> None:
        entry = self.policy.entries[victim]
        self.policy.remove(victim)
        self._gone[victim] = None
        if len(self._gone) > max(LEAST_GONE, len(self.policy)):
            self._gone.popitem(last=False)
        tally = self.tally
        tally.evictions += 1
        tally.evicted_tokens += entry.tokens
        tally.evictions_by_type[entry.kind] += 1

    def _entry(self, request: CacheRequest, index: int, position: int, parent: Hashable | None = None) -> Entry:
        tokens = request.tokens[index]
        return Entry(
            tokens=tokens,
            bytes=tokens if self.unit == "tokens" else 1,
            kind=request.kinds[index],
            saved_ms=self.latency.saved_ms(position, tokens),
            parent=parent,
            position=position,
            prompt_tokens=request.total_tokens,
            tenant=request.tenant_id,
        )


class BlockCache(SimulatedCache):
    """Every block is found by its content, whatever stands before it. Blocks are looked up and brought in in turn."""

    semantics = "block"

    def _serve(self, request: CacheRequest) -> Served:
        held, touch, now = self.policy.entries, self.policy.touch, request.at_s
        saved_of = self.latency.saved_ms
        position = cached = hits = 0
        saved_ms = 0.0
        for index, key in enumerate(request.keys):
            tokens = request.tokens[index]
            if key in held:
                touch(key, now)
                hits += 1
                cached += tokens
                saved_ms += saved_of(position, tokens)
            else:
                self._bring_in(key, self._entry(request, index, position), now)
            position += tokens
        return self._served(request, cached, hits, saved_ms)


class PrefixCache(SimulatedCache):
    """A block is found only behind the same blocks as before, from the prompt's first on."""

    semantics = "prefix"

    def __init__(
        self, policy: EvictionPolicy[Hashable], budget: int, latency: LatencyModel, unit: Unit = "tokens"
    ) -> None:
        super().__init__(LeavesFirst(policy), budget, latency, unit)

    def _serve(self, request: CacheRequest) -> Served:
        policy, now = self.policy, request.at_s
        held, chain = policy.entries, chained(request.keys)
        positions = _positions(request.tokens)
        hits = 0
        while hits < len(chain) and chain[hits] in held:
            hits += 1
        saved_ms = sum(map(self.latency.saved_ms, positions[:hits], request.tokens))
        # From the end to the beginning, as engines release blocks: beginnings are the most recent.
        for key in reversed(chain[:hits]):
            policy.touch(key, now)
        # A block is worth nothing without the ones before it, so the first that does not come in is the last to try.
        own = set(chain).__contains__
        for index in range(hits, len(chain)):
            entry = self._entry(request, index, positions[index], chain[index - 1] if index else None)
            if not self._bring_in(chain[index], entry, now, own):
                self.tally.refused += len(chain) - index - 1
                break
        return self._served(request, sum(request.tokens[:hits]), hits, saved_ms)


class SpanCache(SimulatedCache):
    """Runs of blocks are reused at any place, as SemBlend does: a run that moved has its first tokens computed afresh.

    A run is blocks that stood behind each other when they were kept. One at the prompt's very beginning, as it was, is
    an exact prefix and costs nothing. Others shorter than ``min_span_tokens`` are not worth moving.
    """

    semantics = "span"

    def __init__(
        self,
        policy: EvictionPolicy[Hashable],
        budget: int,
        latency: LatencyModel,
        unit: Unit = "tokens",
        *,
        seam_tokens: int = SEAM_TOKENS,
        min_span_tokens: int = MIN_SPAN_TOKENS,
    ) -> None:
        super().__init__(policy, budget, latency, unit)
        self._seam_tokens = seam_tokens
        self._min_span_tokens = min_span_tokens
        self._before: dict[Hashable, Hashable | None] = {}

    def _serve(self, request: CacheRequest) -> Served:
        keys, tokens, now = request.keys, request.tokens, request.at_s
        positions = _positions(tokens)
        cached = hits = 0
        saved_ms = 0.0
        for start, end in self._runs(keys):
            length = sum(tokens[start:end])
            seam = 0
            if start or self._before[keys[0]] is not None:
                if length < self._min_span_tokens:
                    continue
                seam = min(self._seam_tokens, length)
            self.tally.seam_tokens += seam
            cached += length - seam
            hits += end - start
            worth = sum(map(self.latency.saved_ms, positions[start:end], tokens[start:end]))
            saved_ms += worth * (length - seam) / max(1, length)
        for index, key in enumerate(keys):
            if key in self.policy.entries:
                self.policy.touch(key, now)
            elif self._bring_in(key, self._entry(request, index, positions[index]), now):
                self._before[key] = keys[index - 1] if index else None
        return self._served(request, cached, hits, saved_ms)

    def _runs(self, keys: tuple[int, ...]) -> Iterable[tuple[int, int]]:
        held, index = self.policy.entries, 0
        while index < len(keys):
            start = index
            while index < len(keys) and keys[index] in held:
                if index > start and self._before[keys[index]] != keys[index - 1]:
                    break
                index += 1
            if index > start:
                yield start, index
            else:
                index += 1

    def _evict(self, victim: Hashable) -> None:
        super()._evict(victim)
        self._before.pop(victim, None)


_KINDS: Mapping[Semantics, Callable[..., SimulatedCache]] = {
    "prefix": PrefixCache,
    "block": BlockCache,
    "span": SpanCache,
}
SEMANTICS: tuple[Semantics, ...] = ("prefix", "block", "span")


def make_cache(
    policy: str,
    budget: int,
    *,
    semantics: Semantics = "prefix",
    latency: LatencyModel | None = None,
    unit: Unit = "tokens",
    seam_tokens: int = SEAM_TOKENS,
    min_span_tokens: int = MIN_SPAN_TOKENS,
) -> SimulatedCache:
    spans = {"seam_tokens": seam_tokens, "min_span_tokens": min_span_tokens} if semantics == "span" else {}
    chosen = policy_named(policy, capacity=budget)
    return _KINDS[semantics](chosen, budget, latency or LinearLatency(), unit, **spans)


def replay(requests: Iterable[CacheRequest], cache: SimulatedCache) -> Tally:
    """Serve all; a generator is read once, so memory is that of what the cache holds."""
    for request in requests:
        cache.serve(request)
    return cache.tally


def weights_of(policy: EvictionPolicy[Hashable]) -> Mapping[str, float] | None:
    """What a policy that learns has come to think each kind is worth; None for one that does not learn."""
    inner = policy.policy if isinstance(policy, LeavesFirst) else policy
    weights = getattr(inner, "weights", None)
    return weights if isinstance(weights, Mapping) else None


def _positions(tokens: Iterable[int]) -> list[int]:
    positions, total = [], 0
    for count in tokens:
        positions.append(total)
        total += count
    return positions


def _worth(request: CacheRequest, latency: LatencyModel) -> float:
    return sum(map(latency.saved_ms, _positions(request.tokens), request.tokens))
