"""The smallest engine that can carry out a plan: its KV is the token itself.

It holds a bare provider to the same invariants as a real engine with its adapter: exact prefix cache with chained block
hashes, plans carried out slot by slot, capture after the request. It computes no attention: it proves the
contract, never quality or speed.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semblend_core.contract import (
    DeclineReason,
    DonorOffer,
    LookupRequest,
    LookupResult,
    Namespace,
    Outcome,
    OutcomeKind,
    Plan,
    ProviderStats,
    SemanticLookupProvider,
    TokenIds,
    as_token_ids,
)
from semblend_core.serving import Lineage, LineageBook, claim_of
from semblend_core.testing.subject import Fault, Served, Subject

logger = logging.getLogger(__name__)


@dataclass
class _Grown:
    """What was computed behind relocated KV."""

    lineage: Lineage
    tokens: TokenIds
    kv: TokenIds


@dataclass(frozen=True)
class _Capture:
    offer: DonorOffer
    fault: Fault | None


class TokenEngine(Subject):
    has_lineages = True

    def __init__(self, provider: SemanticLookupProvider, *, block_size: int = 16, min_span_tokens: int = 64) -> None:
        self.block_size = block_size
        self.min_span_tokens = min_span_tokens
        self._provider = provider
        self._exact_blocks: set[bytes] = set()
        self._donor_kv: dict[tuple[str, str], TokenIds] = {}
        self._epoch = 1
        self._lineages = LineageBook()
        self._grown: list[_Grown] = []
        self._stalled: list[_Capture] = []
        self._ids = itertools.count()

    @property
    def provider(self) -> SemanticLookupProvider:
        return self._provider

    def serve(
        self,
        prompt: Sequence[int],
        *,
        salt: str | None = None,
        adapter: str | None = None,
        reuse: bool = True,
        fault: Fault | None = None,
    ) -> Served:
        request_id = f"request-{next(self._ids)}"
        tokens = as_token_ids(prompt)
        namespace = self.namespace(salt=salt, adapter=adapter)
        exact = self._exact_prefix(namespace, tokens)
        in_place = self._in_place(namespace, tokens, exact, reuse)
        if in_place.size > exact:
            return self._go_on(request_id, tokens, exact, in_place)
        request = LookupRequest(request_id, namespace, tokens, exact)

        result = self._look_up(request, fault) if reuse else None
        plan = result.loadable_plan if result else None
        kv = self._load(plan, namespace, tokens, fault) if plan else None
        landed = plan if isinstance(kv, np.ndarray) else None
        outcome = _outcome(request, result, kv)
        if result is not None:
            self._provider.report_outcome(outcome)

        approximate_from = landed.first_approximate_token if landed else None
        if landed is not None and isinstance(kv, np.ndarray):
            self._grow(namespace, tokens, kv, landed)
        self._publish(request, approximate_from)
        self._capture(_Capture(DonorOffer(request_id, namespace, tokens, approximate_from), fault))
        final_kv = kv if isinstance(kv, np.ndarray) else tokens
        return Served(
            request_id,
            tuple(tokens.tolist()),
            outcome,
            exact,
            result.plan if result else None,
            tuple(final_kv.tolist()),
        )

    def settle(self) -> None:
        stalled, self._stalled = self._stalled, []
        for capture in stalled:
            self._capture(_Capture(capture.offer, None))

    def change_weights(self) -> None:
        self._epoch += 1

    def evict(self, tokens: int) -> None:
        """Of what lies behind relocated KV: it goes first."""
        for grown in self._grown:
            grown.kv = grown.kv[: max(grown.lineage.start, grown.kv.size - tokens)]

    def fail_self_test(self) -> None:
        self._provider.restrict_to_discovery("self-test failed: relocated layer-0 K differs from computed K")

    def stats(self) -> ProviderStats:
        return self._provider.stats()

    def check_integrity(self) -> None:
        self._provider.check_integrity()
        assert self.stats().pinned_requests == 0, "a finished request still pins its donors"

    def namespace(self, *, salt: str | None = None, adapter: str | None = None) -> Namespace:
        return Namespace(
            model="token-engine",
            revision=str(self._epoch),
            tokenizer="ids",
            dtype="int32",
            kv_layout="flat",
            block_size=self.block_size,
            adapter=adapter,
            salt=salt,
        )

    def _in_place(self, namespace: Namespace, tokens: TokenIds, exact: int, reuse: bool) -> TokenIds:
        """KV from the first token on, as far as it need not be computed or moved."""
        best = tokens[:exact]
        for lineage in self._lineages.behind(namespace, tokens, exact) if reuse else ():
            for grown in self._grown:
                length = min(grown.kv.size, tokens.size - 1)
                same = int(np.cumprod(grown.tokens[:length] == tokens[:length]).sum())
                whole_blocks = same // self.block_size * self.block_size
                if grown.lineage is lineage and whole_blocks > best.size:
                    best = grown.kv[:whole_blocks]
        return best

    def _go_on(self, request_id: str, tokens: TokenIds, exact: int, in_place: TokenIds) -> Served:
        outcome = Outcome(request_id, OutcomeKind.MATERIALIZED, confirmed_tokens=in_place.size - exact)
        self._provider.report_outcome(outcome)
        kv = (*in_place.tolist(), *tokens[in_place.size :].tolist())
        return Served(request_id, tuple(tokens.tolist()), outcome, exact, None, kv)

    def _grow(self, namespace: Namespace, tokens: TokenIds, kv: TokenIds, plan: Plan) -> None:
        claim = claim_of(plan, self.block_size)
        if claim is not None:
            start = plan.first_approximate_token // self.block_size * self.block_size
            lineage = self._lineages.grow(namespace, tokens, claim, start)
            lineage.confirmed = True
            self._grown.append(_Grown(lineage, tokens, kv))

    def _look_up(self, request: LookupRequest, fault: Fault | None) -> LookupResult:
        try:
            if fault is Fault.LOOKUP_ERROR:
                raise RuntimeError("injected: lookup failed")
            return self._provider.lookup(request)
        except Exception:
            logger.exception("lookup failed, prefilling normally")
            return LookupResult(None, DeclineReason.INTERNAL_ERROR)

    def _load(
        self, plan: Plan, namespace: Namespace, tokens: TokenIds, fault: Fault | None
    ) -> TokenIds | DeclineReason:
        """The prompt's KV with the plan's spans relocated, or why that failed."""
        if fault is Fault.DONOR_EVICTED:
            for donor_id in plan.donor_ids:
                self._donor_kv.pop((namespace.digest, donor_id), None)
                self._provider.forget_donor(namespace, donor_id)
        kv = np.full(plan.prompt_tokens, -1, dtype=np.int32)
        kv[: plan.exact_prefix_tokens] = tokens[: plan.exact_prefix_tokens]
        for span in plan.spans:
            donor = self._donor_kv.get((namespace.digest, span.donor_id))
            if donor is None or donor.size < span.donor_end:
                return DeclineReason.DONOR_EVICTED
            kv[span.target_start : span.target_end] = donor[span.donor_start : span.donor_end]
            if fault is Fault.LOAD_ERROR:
                return DeclineReason.LOAD_FAILED
        for row in plan.rows:
            kv[row.start : row.end] = tokens[row.start : row.end]
        return kv

    def _exact_prefix(self, namespace: Namespace, tokens: TokenIds) -> int:
        # As in real engines, the last token is always computed: its logits are needed.
        covered = 0
        for block_hash in self._block_hashes(namespace, tokens[: max(0, tokens.size - 1)]):
            if block_hash not in self._exact_blocks:
                break
            covered += self.block_size
        return covered

    def _publish(self, request: LookupRequest, approximate_from: int | None) -> None:
        hashes = self._block_hashes(request.namespace, request.token_ids)
        exact_blocks = len(hashes) if approximate_from is None else approximate_from // self.block_size
        self._exact_blocks.update(hashes[:exact_blocks])

    def _capture(self, capture: _Capture) -> None:
        if capture.fault is Fault.CAPTURE_ERROR:
            return  # Nothing was kept, so nothing is offered.
        if capture.fault is Fault.CAPTURE_STALLED:
            self._stalled.append(capture)
            return
        offer = capture.offer
        self._donor_kv[offer.namespace.digest, offer.donor_id] = offer.exact_token_ids
        if self._provider.offer_donor(offer).reason is not None:
            del self._donor_kv[offer.namespace.digest, offer.donor_id]

    def _block_hashes(self, namespace: Namespace, tokens: TokenIds) -> list[bytes]:
        hashes: list[bytes] = []
        parent = namespace.digest.encode()
        for start in range(0, tokens.size - self.block_size + 1, self.block_size):
            parent = hashlib.sha256(parent + tokens[start : start + self.block_size].tobytes()).digest()
            hashes.append(parent)
        return hashes


def _outcome(request: LookupRequest, result: LookupResult | None, kv: TokenIds | DeclineReason | None) -> Outcome:
    if result is None:
        kind = OutcomeKind.EXACT_PREFIX if request.exact_prefix_tokens else OutcomeKind.COLD
        return Outcome(request.request_id, kind)
    if result.plan is None:
        if result.reason is DeclineReason.EXACT_PREFIX_COVERS:
            return Outcome(request.request_id, OutcomeKind.EXACT_PREFIX)
        return Outcome(request.request_id, OutcomeKind.DECLINED, reason=result.reason)
    if not result.materialize:
        return Outcome(request.request_id, OutcomeKind.DISCOVERY_ONLY)
    if isinstance(kv, np.ndarray):
        return Outcome(request.request_id, OutcomeKind.MATERIALIZED, confirmed_tokens=result.plan.reused_tokens)
    return Outcome(request.request_id, OutcomeKind.DECLINED, reason=kv)
