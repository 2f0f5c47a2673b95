"""Which prompts become donors, for engines whose workers copy their KV; and what becomes of those donors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from semblend_core.contract import (
    DeclineReason,
    EvictionCause,
    Namespace,
    SemanticLookupProvider,
    TenantReport,
    TokenIds,
    donor_id_of,
)
from semblend_core.serving.ages import Limits
from semblend_core.serving.captures import Capture, CaptureRule, Captures, tokens_to_keep
from semblend_core.serving.donors import Donor, DonorBook, Price, not_known
from semblend_core.serving.earlier import EarlierDonors, LeftAtRanks, LeftDonor
from semblend_core.serving.life import RequestLife
from semblend_core.serving.prefixes import DonorName
from semblend_core.serving.self_test import SelfTest
from semblend_core.settings import Settings
from semblend_core.telemetry import AuditSink, DonorCaptured


@dataclass(frozen=True, slots=True)
class Kept:
    """What to read of a prompt that is complete."""

    donor_id: str | None
    """None: for the self-test only."""
    token_ids: TokenIds
    saved_ms: float = 0.0
    """What it takes to compute it; 0: not known."""


class DonorKeeper:
    """Called on the scheduler's thread only. What it decides, workers carry out and confirm."""

    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        self_test: SelfTest,
        ranks: int = 1,
        audit: AuditSink | None = None,
        price: Price = not_known,
    ) -> None:
        self._settings, self._self_test, self._ranks, self._audit = settings, self_test, ranks, audit
        self.donors: DonorBook[None] = DonorBook(
            provider, settings.max_donors, self._donor_gone, Limits.of(settings), price, self._donor_copied
        )
        self.captures = Captures(ranks)
        self._rule = CaptureRule(provider, settings, self.donors.prefixes)
        self._earlier: EarlierDonors[Namespace] = EarlierDonors()
        self._left = LeftAtRanks(ranks)
        self._to_forget: list[tuple[Namespace, str]] = []
        self._copies: list[tuple[Namespace, str, int]] = []

    def decide(self, life: RequestLife) -> Kept | None:
        """What to keep of a request whose prompt is complete. Asked once: until the self-test is over, prompts are
        read for it that nobody wants to keep."""
        if life.captured or life.purged:
            return None
        life.captured = True
        kept = tokens_to_keep(life, self._settings)
        if kept is None:
            return None
        donor_id = None
        if life.wish.makes_donor(self._settings):
            name = (life.namespace.digest, donor_id_of(kept))
            if self._rule.wants(life, name, kept):
                donor_id = name[1]
                # Its own oldest make room before its bytes come, or they would cost others their place.
                coming = self.captures.tokens_of(life.namespace.salt_digest)
                self.donors.make_room(life.namespace, kept.size + coming)
                self.captures.begin(name, Capture(life.request_id, life.namespace, kept))
                self.donors.prefixes.add(name, kept)
        if donor_id is None:
            return Kept(None, kept) if self._self_test.wants_prompts else None
        return Kept(donor_id, kept, self.donors.price(kept.size))

    def durable(self, name: DonorName, ranks: frozenset[int]) -> None:
        """These ranks hold the donor. It can be found when all do."""
        capture = self.captures.durable(name, ranks)
        if capture is None:
            return
        if self._audit is not None:
            captured = DonorCaptured(
                request_id=capture.request_id,
                namespace=capture.namespace,
                donor_id=name[1],
                tokens=capture.token_ids.size,
            )
            self._audit.emit(captured)
        self._offer(capture.namespace, name[1], capture.token_ids)

    def lost(self, name: DonorName, why: DeclineReason) -> None:
        """At one rank at least it is not, or no longer, kept: at the others it is of no use."""
        self._earlier.discard(name)
        self._left.discard(name)
        under_way = self.captures.stop(name)
        if under_way is not None:
            self.donors.prefixes.discard(name)
            self._donor_gone(Donor(under_way.namespace, name[1], None))
        cause: EvictionCause = "store" if why is DeclineReason.DONOR_EVICTED else "lost"
        self.donors.drop(name, why, "expired" if self.donors.is_expired(name) else cause)

    def recovered(self, donors: Mapping[int, Iterable[LeftDonor]]) -> None:
        """What an earlier process left on disk, by rank. Those that all ranks hold can be found again."""
        self._earlier.found(self._left.told(donors))

    def meet(self, namespace: Namespace) -> None:
        """A request of this namespace is here: donors that were left for it can be named now."""
        self._offer_again(self._earlier.seen(namespace.digest, namespace))

    def offer_some(self) -> None:
        """Of what an earlier process left, a few at a time."""
        self._offer_again(self._earlier.some())

    def forget_all(self) -> None:
        """Every donor of every tier: what they were computed with has changed."""
        self.donors.clear()
        self._earlier.clear()
        self._left.clear()
        for donor in self.captures.clear():
            self.donors.prefixes.discard(donor.name)
            self._donor_gone(donor)

    def forget_tenant(self, tenant: str) -> TenantReport:
        """Every donor of the tenant, findable, on its way or left by an earlier process: what there was."""
        stopped = self.captures.stop_tenant(tenant)
        for name in stopped:
            self.donors.prefixes.discard(name)
        self._rule.forget_tenant(tenant)
        self._left.forget_tenant(tenant)
        self._to_forget = [each for each in self._to_forget if each[0].salt_digest != tenant]
        self._copies = [each for each in self._copies if each[0].salt_digest != tenant]
        found = self.donors.forget_tenant(tenant) + self._earlier.forget_tenant(tenant)
        return found + TenantReport(captures=len(stopped))

    def held_by(self, tenant: str) -> TenantReport:
        return self.donors.held_by(tenant) + self._earlier.held_by(tenant) + self.captures.held_by(tenant)

    @property
    def any_forgotten(self) -> bool:
        return bool(self._to_forget)

    def take_forgotten(self) -> list[tuple[Namespace, str]]:
        """What the workers need not keep any longer."""
        forgotten, self._to_forget = self._to_forget, []
        return forgotten

    def take_copied(self) -> list[tuple[Namespace, str, int]]:
        """Donors of whose first tokens newer ones hold so many too."""
        copies, self._copies = self._copies, []
        return copies

    def _offer_again(self, donors: Iterable[tuple[Namespace, str, TokenIds, float]]) -> None:
        for namespace, donor_id, tokens, born in donors:
            self._offer(namespace, donor_id, tokens, born)

    def _offer(self, namespace: Namespace, donor_id: str, tokens: TokenIds, born: float | None = None) -> None:
        donor = self.donors.offer(namespace, tokens, None, donor_id, born)
        if donor is not None:
            self.donors.replace_prefixes(donor, tokens)

    def _donor_copied(self, donor: Donor[None], tokens: int) -> None:
        self._copies.append((donor.namespace, donor.donor_id, tokens))

    def _donor_gone(self, donor: Donor[None]) -> None:
        self._to_forget.append((donor.namespace, donor.donor_id))
