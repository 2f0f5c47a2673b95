"""A provider small enough to read in one sitting, and slow: the yardstick that faster ones are held against."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, defaultdict

from semblend_core.contract import (
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
    TokenIds,
)
from semblend_core.provider.sharing import may_share
from semblend_core.settings import Settings
from semblend_core.telemetry import ProviderCounters

logger = logging.getLogger(__name__)

TOKEN_BYTES = 4


class ReferenceProvider(SemanticLookupProvider):
    """Keeps donors in memory, newest last, and scans all of them with Python dictionaries."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._donors: dict[str, OrderedDict[str, TokenIds]] = defaultdict(OrderedDict)
        self._pins: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._closed_requests: OrderedDict[str, None] = OrderedDict()
        self._counters = ProviderCounters()
        self._lock = threading.RLock()
        self._discovery_only = self.settings.discovery_only
        self._shut_down = False

    def lookup(self, request: LookupRequest) -> LookupResult:
        with self._lock:
            self._closed_requests.pop(request.request_id, None)
            deadline = time.perf_counter() + self.settings.lookup_budget_ms / 1e3
            answer = self._find(request, deadline)
            if isinstance(answer, Plan):
                self._pins[request.request_id] = (request.namespace.digest, answer.donor_ids)
                result = LookupResult(answer, None, materialize=not self._discovery_only)
            else:
                result = LookupResult(None, answer)
            self._counters.count_lookup(result)
            return result

    def offer_donor(self, offer: DonorOffer) -> OfferResult:
        with self._lock:
            reason = self._refuse_offer(offer)
            if reason is None:
                self._donors[offer.namespace.digest][offer.donor_id] = offer.exact_token_ids
                self._evict_over_budget()
            result = OfferResult(int(offer.exact_token_ids.size) if reason is None else 0, reason)
            self._counters.count_offer(result)
            return result

    def forget_donor(self, namespace: Namespace, donor_id: str) -> bool:
        with self._lock:
            return self._donors[namespace.digest].pop(donor_id, None) is not None

    def report_outcome(self, outcome: Outcome) -> None:
        with self._lock:
            self._pins.pop(outcome.request_id, None)
            if outcome.request_id in self._closed_requests:
                return
            self._closed_requests[outcome.request_id] = None
            while len(self._closed_requests) > 4096:
                self._closed_requests.popitem(last=False)
            self._counters.count_outcome(outcome)

    def restrict_to_discovery(self, reason: str) -> None:
        logger.warning("discovery only from now on: %s", reason)
        with self._lock:
            self._discovery_only = True

    def stats(self) -> ProviderStats:
        with self._lock:
            return self._counters.snapshot(
                donors=sum(len(donors) for donors in self._donors.values()),
                donor_bytes=self._donor_bytes(),
                pinned_requests=len(self._pins),
            )

    def check_integrity(self) -> None:
        with self._lock:
            assert self._donor_bytes() <= self.settings.donor_index_bytes
            assert all(tokens.size for donors in self._donors.values() for tokens in donors.values())

    def close(self) -> None:
        with self._lock:
            self._shut_down = True
            self._donors.clear()
            self._pins.clear()

    def _find(self, request: LookupRequest, deadline: float) -> Plan | DeclineReason:
        if self._shut_down:
            return DeclineReason.SHUT_DOWN
        if not self.settings.enabled:
            return DeclineReason.DISABLED
        if not may_share(self.settings, request.namespace):
            return DeclineReason.NO_SALT
        if request.token_ids.size - request.exact_prefix_tokens <= self.settings.min_span_tokens:
            covered = request.exact_prefix_tokens > 0
            return DeclineReason.EXACT_PREFIX_COVERS if covered else DeclineReason.PROMPT_TOO_SHORT
        spans = self._longest_runs(request, deadline)
        if spans is None:
            return DeclineReason.LOOKUP_TIMEOUT
        if not spans:
            return DeclineReason.NO_SPANS
        return Plan.over(request.request_id, int(request.token_ids.size), request.exact_prefix_tokens, spans)

    def _longest_runs(self, request: LookupRequest, deadline: float) -> list[Span] | None:
        """From left to right, the longest run that starts here; None when time is up."""
        donors = self._donors[request.namespace.digest]
        prompt = request.token_ids.tolist()
        starts = _run_starts(donors, self.settings.min_span_tokens)
        spans: list[Span] = []
        position = request.exact_prefix_tokens
        while position <= len(prompt) - self.settings.min_span_tokens:
            if time.perf_counter() > deadline:
                return None
            head = tuple(prompt[position : position + self.settings.min_span_tokens])
            best: Span | None = None
            for donor_id, donor_start in starts.get(head, ()):
                length = _common_length(prompt, position, donors[donor_id].tolist(), donor_start)
                if best is None or length > best.length:
                    best = Span(position, donor_id, donor_start, length)
            if best is None:
                position += 1
            else:
                spans.append(best)
                position = best.target_end
        return spans

    def _refuse_offer(self, offer: DonorOffer) -> DeclineReason | None:
        known = self._donors[offer.namespace.digest]
        if not may_share(self.settings, offer.namespace):
            return DeclineReason.NO_SALT
        if offer.exact_token_ids.size < self.settings.min_span_tokens:
            return DeclineReason.DONOR_TOO_SHORT if offer.approximate_from is None else DeclineReason.APPROXIMATE_SOURCE
        if offer.donor_id in known:
            return DeclineReason.DUPLICATE_DONOR
        if offer.exact_token_ids.size * TOKEN_BYTES > self.settings.donor_index_bytes:
            return DeclineReason.DONOR_TOO_LARGE
        return None

    def _evict_over_budget(self) -> None:
        pinned = {(digest, donor) for digest, donors in self._pins.values() for donor in donors}
        unpinned = [(d, i) for d, donors in self._donors.items() for i in donors if (d, i) not in pinned]
        for digest, donor_id in unpinned:
            if self._donor_bytes() <= self.settings.donor_index_bytes:
                return
            del self._donors[digest][donor_id]
            self._counters.count_evictions()

    def _donor_bytes(self) -> int:
        return sum(tokens.nbytes for donors in self._donors.values() for tokens in donors.values())


def _run_starts(donors: OrderedDict[str, TokenIds], length: int) -> dict[tuple[int, ...], list[tuple[str, int]]]:
    starts: dict[tuple[int, ...], list[tuple[str, int]]] = defaultdict(list)
    for donor_id, tokens in reversed(donors.items()):
        ids = tokens.tolist()
        for start in range(len(ids) - length + 1):
            starts[tuple(ids[start : start + length])].append((donor_id, start))
    return starts


def _common_length(prompt: list[int], start: int, donor: list[int], donor_start: int) -> int:
    length = 0
    while start + length < len(prompt) and donor_start + length < len(donor):
        if prompt[start + length] != donor[donor_start + length]:
            break
        length += 1
    return length
