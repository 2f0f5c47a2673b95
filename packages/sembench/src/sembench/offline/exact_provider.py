"""The baseline that every provider is held against: full blocks that some donor has too, at any block position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sembench.offline.blocks import Ids, blocks_of
from semblend_core import (
    DeclineReason,
    DonorOffer,
    LookupRequest,
    LookupResult,
    Namespace,
    OfferResult,
    Outcome,
    Plan,
    ProviderStats,
    SemanticLookupProvider,
    Span,
)


class ExactBlockProvider(SemanticLookupProvider):
    """Proposes a recipient block where a donor has an equal one at a multiple of the block size, and nothing else."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._pools: dict[str, _Pool] = {}
        self._lookups = self._plans = 0
        self._shut_down = False

    def lookup(self, request: LookupRequest) -> LookupResult:
        self._lookups += 1
        if self._shut_down:
            return LookupResult(None, DeclineReason.SHUT_DOWN)
        pool = self._pools.get(request.namespace.digest)
        if pool is None:
            return LookupResult(None, DeclineReason.NO_DONORS)
        spans = self._spans(request, pool)
        if not spans:
            return LookupResult(None, DeclineReason.NO_SPANS)
        self._plans += 1
        prompt = int(request.token_ids.size)
        return LookupResult(Plan.over(request.request_id, prompt, request.exact_prefix_tokens, spans), None)

    def _spans(self, request: LookupRequest, pool: _Pool) -> list[Span]:
        size = self._block_size
        spans: list[Span] = []
        for number, block in enumerate(blocks_of(request.token_ids, size)):
            start = number * size
            if start < request.exact_prefix_tokens or block not in pool.places:
                continue
            last = spans[-1] if spans else None
            if last is not None and last.target_end == start and pool.goes_on(last, block):
                spans[-1] = replace(last, length=last.length + size)
            else:
                donor_id, donor_start = pool.places[block]
                spans.append(Span(start, donor_id, donor_start, size))
        return spans

    def offer_donor(self, offer: DonorOffer) -> OfferResult:
        tokens = offer.exact_token_ids
        if self._shut_down:
            return OfferResult(0, DeclineReason.SHUT_DOWN)
        if tokens.size < self._block_size:
            return OfferResult(0, DeclineReason.DONOR_TOO_SHORT)
        pool = self._pools.setdefault(offer.namespace.digest, _Pool(self._block_size))
        if not pool.add(offer.donor_id, tokens):
            return OfferResult(0, DeclineReason.DUPLICATE_DONOR)
        return OfferResult(int(tokens.size))

    def forget_donor(self, namespace: Namespace, donor_id: str) -> bool:
        pool = self._pools.get(namespace.digest)
        if pool is None or not pool.remove(donor_id):
            return False
        if not pool.donors:
            del self._pools[namespace.digest]
        return True

    def report_outcome(self, outcome: Outcome) -> None:
        """Nothing is pinned, so nothing is released."""

    def restrict_to_discovery(self, reason: str) -> None:
        """It has no other mode."""

    def stats(self) -> ProviderStats:
        donors = [tokens for pool in self._pools.values() for tokens in pool.donors.values()]
        return ProviderStats(
            lookups=self._lookups,
            plans=self._plans,
            donors=len(donors),
            donor_bytes=sum(tokens.nbytes for tokens in donors),
        )

    def check_integrity(self) -> None:
        for pool in self._pools.values():
            assert pool.donors
            assert {donor_id for donor_id, _ in pool.places.values()} <= set(pool.donors)

    def close(self) -> None:
        self._shut_down = True
        self._pools.clear()


class _Pool:
    """The donors of one namespace, and where each different block was first seen."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.donors: dict[str, Ids] = {}
        self.places: dict[bytes, tuple[str, int]] = {}

    def add(self, donor_id: str, tokens: Ids) -> bool:
        """False where the id is taken by other tokens."""
        if donor_id in self.donors:
            return np.array_equal(self.donors[donor_id], tokens)
        self.donors[donor_id] = tokens
        for number, block in enumerate(blocks_of(tokens, self._block_size)):
            self.places.setdefault(block, (donor_id, number * self._block_size))
        return True

    def remove(self, donor_id: str) -> bool:
        if donor_id not in self.donors:
            return False
        kept = {name: tokens for name, tokens in self.donors.items() if name != donor_id}
        self.donors, self.places = {}, {}
        for name, tokens in kept.items():
            self.add(name, tokens)
        return True

    def goes_on(self, span: Span, block: bytes) -> bool:
        """Whether the span's donor has ``block`` next."""
        following = self.donors[span.donor_id][span.donor_end : span.donor_end + self._block_size]
        return blocks_of(following, self._block_size) == [block]
