"""Which prompts become donors, and which are on their way to be some."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from semblend_core.contract import (
    DeclineReason,
    Namespace,
    SemanticLookupProvider,
    TenantReport,
    TokenIds,
    tenant_of,
)
from semblend_core.provider.sharing import may_share
from semblend_core.serving.donors import Donor, drop_tenant
from semblend_core.serving.life import RequestLife
from semblend_core.serving.prefixes import DonorName, DonorPrefixes
from semblend_core.settings import Settings

SMALL_ADDITION = 0.1
"""A prompt that adds less than this share of itself to a donor is kept when it is asked for twice."""
MOST_ASKED_ONCE = 4096
"""Prompts remembered as asked for once."""
LONGEST_CAPTURE_S = 120.0
"""A copy that takes longer is not waited for: it is heard of with the next request. Busy machines take a while."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A prompt whose KV is being copied."""

    request_id: str
    namespace: Namespace
    token_ids: TokenIds


class Captures:
    """Copies under way. A donor is durable when every rank holds its part."""

    def __init__(self, ranks: int, now: Callable[[], float] = time.monotonic) -> None:
        self._ranks, self._now = frozenset(range(ranks)), now
        self._coming: dict[DonorName, Capture] = {}
        self._holders: dict[DonorName, frozenset[int]] = {}
        self._began = 0.0

    def __contains__(self, name: DonorName) -> bool:
        return name in self._coming

    @property
    def any_coming(self) -> bool:
        """Whether a copy is under way, and began to be not long ago."""
        return bool(self._coming) and self._now() - self._began < LONGEST_CAPTURE_S

    def begin(self, name: DonorName, capture: Capture) -> None:
        self._coming[name] = capture
        self._began = self._now()

    def durable(self, name: DonorName, ranks: frozenset[int]) -> Capture | None:
        """These ranks hold it now. The capture, if with them all do."""
        if name not in self._coming:
            return None  # Another rank has lost it meanwhile.
        self._holders[name] = self._holders.get(name, frozenset()) | ranks
        return self.stop(name) if self._holders[name] >= self._ranks else None

    def stop(self, name: DonorName) -> Capture | None:
        self._holders.pop(name, None)
        return self._coming.pop(name, None)

    def clear(self) -> list[Donor[None]]:
        """Those that were under way."""
        stopped = [Donor(capture.namespace, donor_id, None) for (_, donor_id), capture in self._coming.items()]
        self._coming.clear()
        self._holders.clear()
        return stopped

    def stop_tenant(self, tenant: str) -> list[DonorName]:
        """Those of the tenant that were under way. What workers still say of them is heard by nobody."""
        stopped = [name for name in self._coming if tenant_of(name[0]) == tenant]
        for name in stopped:
            self.stop(name)
        return stopped

    def tokens_of(self, tenant: str) -> int:
        return sum(each.token_ids.size for name, each in self._coming.items() if tenant_of(name[0]) == tenant)

    def held_by(self, tenant: str) -> TenantReport:
        return TenantReport(captures=sum(tenant_of(name[0]) == tenant for name in self._coming))

    def check_integrity(self) -> None:
        assert self._holders.keys() <= self._coming.keys(), "a donor is durable in part that nobody waits for"


class CaptureRule:
    """Which prompts are worth keeping beside the donors there are. Called on the scheduler's thread only."""

    def __init__(self, provider: SemanticLookupProvider, settings: Settings, prefixes: DonorPrefixes) -> None:
        self._provider, self._settings, self._prefixes = provider, settings, prefixes
        self._asked_once: OrderedDict[DonorName, None] = OrderedDict()

    def wants(self, life: RequestLife, name: DonorName, token_ids: TokenIds) -> bool:
        """Whether a prompt that may become a donor should. Where not, the provider counts why."""
        reason = self._refusal(life, name, token_ids)
        if reason is not None:
            self._provider.note_unwanted(life.namespace, name[1], reason)
        return reason is None

    def forget_tenant(self, tenant: str) -> None:
        drop_tenant(self._asked_once, tenant)

    def _refusal(self, life: RequestLife, name: DonorName, token_ids: TokenIds) -> DeclineReason | None:
        most = self._settings.tenant_tokens
        if most is not None and token_ids.size > most:
            return DeclineReason.DONOR_TOO_LARGE
        held = self._prefixes.held(name[0], token_ids)
        if token_ids.size - held < self._settings.min_span_tokens:
            return DeclineReason.DONOR_COVERED
        # What donors hold in other places need not be held once more, unless it is asked for again as it is here.
        found = life.finding if life.approximate_from is None else None
        added = token_ids.size - max(held, 0 if found is None else found.covered_tokens)
        if added >= SMALL_ADDITION * token_ids.size or life.wish.capture:
            return None
        if name in self._asked_once:
            del self._asked_once[name]
            return None
        self._asked_once[name] = None
        while len(self._asked_once) > MOST_ASKED_ONCE:
            self._asked_once.popitem(last=False)
        return DeclineReason.DONOR_ASKED_ONCE


def tokens_to_keep(life: RequestLife, settings: Settings, page_size: int = 1) -> TokenIds | None:
    """What of a computed prompt may become a donor: whole pages of its untouched exact part, if they are enough."""
    if not may_share(settings, life.namespace):
        return None
    exact = len(life.prompt) if life.approximate_from is None else life.approximate_from
    whole_pages = exact // page_size * page_size
    return None if whole_pages < settings.min_span_tokens else life.token_ids[:whole_pages]
