"""A worked example: the smallest engine, and its adapter on ``semblend_core.serving``.

The engine serves one request at a time and keeps one slot per token; the KV of a token is the token itself. What a real
adapter does in two processes, over many steps and with tensors, happens here in one function each. The conformance
suite holds it to every invariant: tests/serving/test_toy_engine.py.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable

import numpy as np

from semblend_core import DeclineReason, Plan, SemanticLookupProvider, Settings, TokenIds, as_token_ids
from semblend_core.serving import (
    Claim,
    DonorKeeper,
    DonorName,
    Namespaces,
    RequestBook,
    RequestLife,
    Seeker,
    SelfTest,
    Stage,
    Wish,
    claim_by_tier,
)

BLOCK = 16
Work = Callable[[], None]


class ToyEngine:
    """All that is the engine's own: its prefix cache, its slots, and its prefill."""

    def __init__(self, adapter: ToyAdapter) -> None:
        self.adapter = adapter
        self._published: set[bytes] = set()
        self._numbers = itertools.count()

    def serve(self, prompt: TokenIds, salt: str | None, adapter: str | None, wish: Wish) -> tuple[int, TokenIds]:
        """The exact prefix that was found, and the KV that the request ends up with."""
        keys = self._block_keys(prompt, salt, adapter)
        found = itertools.takewhile(self._published.__contains__, keys[: (prompt.size - 1) // BLOCK])
        exact = len(list(found)) * BLOCK
        life = self.adapter.follow(f"request-{next(self._numbers)}", prompt, salt, adapter, wish)
        kv = np.full(prompt.size, -1, np.int32)
        kv[:exact] = prompt[:exact]
        claim = self.adapter.admit(life, exact, kv)
        for start, end in ((exact, prompt.size),) if claim is None else (*claim.rows, (claim.end, prompt.size)):
            kv[start:end] = prompt[start:end]  # The prefill: rows, and the prompt behind the claim.
        exact_blocks = len(keys) if life.approximate_from is None else life.approximate_from // BLOCK
        self._published.update(keys[:exact_blocks])  # Nothing approximate under an exact key.
        self.adapter.computed(life, kv)
        self.adapter.finished(life)
        return exact, kv

    def _block_keys(self, prompt: TokenIds, salt: str | None, adapter: str | None) -> list[bytes]:
        keys, parent = [], repr((salt, adapter)).encode()
        for start in range(0, prompt.size - BLOCK + 1, BLOCK):
            parent = hashlib.sha256(parent + prompt[start : start + BLOCK].tobytes()).digest()
            keys.append(parent)
        return keys


class ToyAdapter:
    """All that an adapter adds to ``serving``: what a claim means here, how KV is kept, and how it is loaded."""

    def __init__(self, provider: SemanticLookupProvider, settings: Settings) -> None:
        self._settings = settings
        self.namespaces = Namespaces(
            model="toy", revision="1", tokenizer="ids", dtype="int32", kv_layout="flat", block_size=BLOCK
        )
        # Tokens have no positions to turn: no rank has anything to prove.
        self.self_test = SelfTest(0, provider.note_self_test)
        self.keeper = DonorKeeper(provider, settings, self.self_test)
        self.requests: RequestBook[RequestLife] = RequestBook(provider.report_outcome)
        self.seeker = Seeker(provider, self.requests, self.keeper.donors, self.self_test, self._claim_for)
        self.kept: dict[DonorName, TokenIds] = {}
        """The donors' KV."""
        self.run: Callable[[Work], None] = lambda work: work()
        """Where captures are copied. A real one has a thread or a stream of its own."""

    def follow(
        self, request_id: str, prompt: TokenIds, salt: str | None, adapter: str | None, wish: Wish
    ) -> RequestLife:
        life = RequestLife(prompt, request_id, self.namespaces.of(adapter, salt), as_token_ids(prompt), wish)
        self.requests.add(life)
        return life

    def admit(self, life: RequestLife, exact: int, kv: TokenIds) -> Claim | None:
        """Fill ``kv`` with what is reused behind the ``exact`` prefix. None: the request is computed cold."""
        claim = None
        try:
            claim = self.seeker.seek(life, exact) if life.is_open else None
        except Exception:  # Whatever goes wrong costs the request nothing.
            self.requests.decline(life, DeclineReason.INTERNAL_ERROR)
        if claim is None:
            self.requests.serve_without(life, Stage.COLD, self.self_test.why_not)
            return None
        self.requests.load(life)
        failed = self._load(life, claim, kv)
        if failed is not None:
            self.requests.decline(life, failed)
            self.requests.start_over(life)
            return None
        life.approximate_from = claim.first_approximate
        self.requests.confirm(life, claim.reused_tokens, claim.reused_tokens * 4)
        return claim

    def computed(self, life: RequestLife, kv: TokenIds) -> None:
        """The prompt is complete: it may become a donor, once its KV is copied."""
        kept = self.keeper.decide(life)
        if kept is not None and kept.donor_id is not None:
            name, copied = (life.namespace.digest, kept.donor_id), kv[: kept.token_ids.size].copy()
            self.run(lambda: self._keep(name, copied))
        self._forget()

    def finished(self, life: RequestLife) -> None:
        self.requests.end(life)

    def _claim_for(self, life: RequestLife, plan: Plan) -> Claim | DeclineReason:
        limit = self._settings.recompute_limit
        return claim_by_tier(plan, self._settings.quality_tier, BLOCK, limit=limit, correcting=None)

    def _load(self, life: RequestLife, claim: Claim, kv: TokenIds) -> DeclineReason | None:
        for span in claim.spans:
            donor = self.kept.get((life.namespace.digest, span.donor_id))
            if donor is None:
                return DeclineReason.DONOR_EVICTED
            try:
                kv[span.target_start : span.target_end] = donor[span.donor_start : span.donor_end]
            except OSError:
                return DeclineReason.LOAD_FAILED
        return None

    def _keep(self, name: DonorName, copied: TokenIds) -> None:
        try:
            self.kept[name] = copied
        except OSError:
            self.keeper.lost(name, DeclineReason.CAPTURE_FAILED)
            return
        self.keeper.durable(name, frozenset([0]))  # Only now may it be found.

    def _forget(self) -> None:
        for namespace, donor_id in self.keeper.take_forgotten():
            self.kept.pop((namespace.digest, donor_id), None)
