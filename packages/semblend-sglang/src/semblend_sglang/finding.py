"""What may be reused for a prompt, from donors that are there now; and what becomes a donor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from semblend_core import (
    DeclineReason,
    DonorOffer,
    EarlierDonors,
    LookupRequest,
    Namespace,
    Plan,
    SemanticLookupProvider,
    Settings,
    TokenIds,
    donor_id_of,
)
from semblend_core.kv import RotationProof
from semblend_core.recompute import choose_policy
from semblend_sglang import proof
from semblend_sglang.claims import Claim, claim_of
from semblend_sglang.donors import Donor, DonorBook
from semblend_sglang.fetching import Coming
from semblend_sglang.guard import guarded
from semblend_sglang.kept import KeptDonors
from semblend_sglang.loading import Load, Sources, load
from semblend_sglang.pool import KvPool
from semblend_sglang.requests import FollowedRequest, TreeKey, token_ids_of
from semblend_sglang.tree import ExactTree

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 4
"""Lookups for one request in one round: each finds some donor gone, and does without it."""


@dataclass(frozen=True)
class BatchLimits:
    """What one of SGLang's batches can hold."""

    row_tokens: int
    """Of one request, beside at least a page of its own."""
    sequences: int
    """Rows included: SGLang's buffers have no room for more."""


class Finder:
    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        tree: ExactTree,
        pool: KvPool,
        limits: BatchLimits,
        kept: KeptDonors | None = None,
    ) -> None:
        self.provider, self.settings, self.tree, self.pool = provider, settings, tree, pool
        self.limits, self.kept = limits, kept
        self.donors = DonorBook(settings.max_donors, self._dropped)
        self._earlier: EarlierDonors[tuple[Namespace, TreeKey]] = EarlierDonors()
        self.generation = 0
        """Grows with every donor that can be found: a lookup that found nothing is not repeated while it stands."""
        self.proved = False
        """The self-test passed; until then plans are found and not loaded."""
        self._stopped = False
        self._proof = RotationProof(pool.rotation)

    @property
    def why_unproved(self) -> DeclineReason | None:
        if self.proved:
            return None
        failed = self._stopped or self._proof.result.failed
        return DeclineReason.SELF_TEST_FAILED if failed else DeclineReason.SELF_TEST_PENDING

    def find(self, followed: FollowedRequest, exact_tokens: int) -> Claim | None:
        """A claim on donors that are there now. Notes in ``followed`` what was found, or why nothing was."""
        followed.looked_up = True
        for _ in range(MOST_ATTEMPTS):
            result = self.provider.lookup(
                LookupRequest(followed.request_id, followed.namespace, followed.token_ids, exact_tokens)
            )
            followed.found, followed.reason = result.plan is not None, result.reason
            plan = result.loadable_plan
            if plan is None or not self.proved or followed.wish.mode != "on":
                return None
            if not self._drop_missing(followed, plan):
                return self._claim_for(followed, plan) if self._of_same_tokens(followed, plan) else None
        followed.found, followed.reason = False, DeclineReason.DONOR_EVICTED
        return None

    def meet(self, followed: FollowedRequest) -> None:
        """A request that was not seen before: donors that an earlier process left for its like can be named now."""
        if self.kept is None:
            return
        self._earlier.found(self.kept.left_by_earlier_process())
        owner = (followed.namespace, followed.key)
        self._offer_again(self._earlier.seen(followed.namespace.digest, owner) or self._earlier.some())

    def bring(self, followed: FollowedRequest, claim: Claim) -> Literal["there", "coming"] | DeclineReason:
        """Whether the donors of ``claim`` can be moved from now; what lies on disk is sent for."""
        if self.kept is None or not self.kept.has_disk:
            return "there"
        coming = followed.coming
        if coming is None or coming.claim is not claim:
            coming = Coming(claim) if coming is None else Coming(claim, coming.since)
            followed.coming = coming
        missing = self._send_for_missing(followed, coming, self.kept)
        if coming.failed is not None:
            return coming.failed
        if not missing and coming.done:
            followed.coming = coming if coming.fetches else None  # Only who waits for a disk can be late.
            return "there"
        return coming.late or "coming"

    def load(self, followed: FollowedRequest, claim: Claim) -> Load | DeclineReason:
        """Fill private slots with what ``claim`` reuses. Donors are held while their KV is copied, and no longer."""
        sources = Sources(self.tree)
        try:
            return self._gather(followed, claim, sources) or load(claim, followed.token_ids, sources, self.pool)
        finally:
            sources.let_go()

    def remember(self, followed: FollowedRequest, read_slots: Callable[[], Tensor]) -> None:
        """The exact tree holds the whole prompt of ``followed``, in these slots: if wanted, it is a donor from now on.

        Until the self-test has passed, prompts are read for it that nobody wants to keep.
        """
        whole_pages = followed.token_ids.size // self.tree.page_size * self.tree.page_size
        tokens = followed.token_ids[:whole_pages]
        if whole_pages < self.settings.min_span_tokens:
            return
        if not self._stopped and (not self.proved or self._proof.result.passed):
            self._prove(lambda: read_slots()[:whole_pages], tokens)
        wanted = followed.wish.makes_donor(self.settings)
        donor = self._offer(followed.namespace, followed.key, tokens) if wanted else None
        if donor is not None and self.kept is not None:
            nbytes = whole_pages * self.pool.token_bytes
            self.kept.keep(donor, tokens, nbytes, lambda: self.pool.take(read_slots()[:whole_pages]))

    def forget_all(self) -> None:
        self.donors.clear()
        self._earlier.clear()

    def stop(self, why: str) -> None:
        """Nothing is loaded from now on, whatever the self-test says."""
        self.proved, self._stopped = False, True
        guarded("restrict_to_discovery", self.provider.restrict_to_discovery, why)

    def close(self) -> None:
        guarded("the provider's close", self.provider.close)
        if self.kept is not None:
            self.kept.close()

    def _claim_for(self, followed: FollowedRequest, plan: Plan) -> Claim | None:
        choice = choose_policy(self.settings.quality_tier, plan, probing=False, limit=self.settings.recompute_limit)
        claim = None
        if choice is not None:
            # The policy's correction, if it wants one, is left out: it needs a call inside every layer.
            decided = choice.policy.plan(plan, budget=choice.budget, probe=None, block=1).plan
            claim = claim_of(decided, self.tree.page_size, self.limits.row_tokens, self.limits.sequences - 1)
        if claim is None:
            followed.found = False
            followed.reason = DeclineReason.QUALITY_TIER if choice is None else DeclineReason.TOO_FEW_TOKENS_SAVED
        return claim

    def _drop_missing(self, followed: FollowedRequest, plan: Plan) -> bool:
        """Whether a donor of the plan is gone. It is forgotten, except for what the tree still holds of it."""
        missing = False
        for donor_id in plan.donor_ids:
            reach = max(span.donor_end for span in plan.spans if span.donor_id == donor_id)
            donor = self.donors.get(followed.namespace, donor_id)
            if donor is None:
                self.provider.forget_donor(followed.namespace, donor_id)
                missing = True
                continue
            there = self.tree.find(donor.tokens, donor.key).length
            if there >= reach or (self.kept is not None and self.kept.holds(donor)):
                continue
            self.donors.drop(donor.name)
            missing = True
            if there >= self.settings.min_span_tokens:
                self._offer(donor.namespace, donor.key, token_ids_of(donor.tokens[:there]))
        return missing

    def _of_same_tokens(self, followed: FollowedRequest, plan: Plan) -> bool:
        """KV stands for its own tokens only: a provider's word is not enough for that."""
        for span in plan.spans:
            donor = self.donors.get(followed.namespace, span.donor_id)
            theirs = donor.tokens[span.donor_start : span.donor_end] if donor is not None else ()
            if not np.array_equal(theirs, followed.token_ids[span.target_start : span.target_end]):
                logger.error("the plan for %s would reuse KV of other tokens", followed.request_id)
                followed.found, followed.reason = False, DeclineReason.INTERNAL_ERROR
                return False
        return True

    def _gather(self, followed: FollowedRequest, claim: Claim, sources: Sources) -> DeclineReason | None:
        coming = followed.coming
        brought = coming.fetches if coming is not None and coming.claim is claim else {}
        for donor_id in claim.donor_ids:
            spans = [span for span in claim.spans if span.donor_id == donor_id]
            donor = self.donors.get(followed.namespace, donor_id)
            if donor is not None and sources.hold_in_tree(donor, max(span.donor_end for span in spans)):
                continue
            fetch = brought.get(donor_id)
            if fetch is None and donor is not None and self.kept is not None:
                fetch = self.kept.fetch(donor, spans)
            if fetch is None:
                if donor is not None:
                    self.donors.drop(donor.name)
                return DeclineReason.DONOR_EVICTED
            sources.fetches.append(fetch)
        return None

    def _send_for_missing(self, followed: FollowedRequest, coming: Coming, kept: KeptDonors) -> bool:
        """Fetch what is on disk and nowhere else. Whether something could not be sent for yet."""
        for donor_id in coming.claim.donor_ids:
            donor = self.donors.get(followed.namespace, donor_id)
            if donor is None or donor_id in coming.fetches or not kept.only_on_disk(donor):
                continue  # One that is gone is found out at admission.
            spans = [span for span in coming.claim.spans if span.donor_id == donor_id]
            if self.tree.find(donor.tokens, donor.key).length >= max(span.donor_end for span in spans):
                continue
            if not kept.may_fetch(coming):
                return True
            fetch = kept.fetch(donor, spans)
            if fetch is not None:
                coming.add(donor_id, fetch)
        return False

    def _offer(self, namespace: Namespace, key: TreeKey, tokens: TokenIds) -> Donor | None:
        """Make ``tokens`` known under a key; None where they are known, or are not wanted."""
        donor_id = donor_id_of(tokens)
        if self.donors.get(namespace, donor_id) is not None:
            return None
        result = self.provider.offer_donor(DonorOffer(donor_id, namespace, tokens))
        for name in result.evicted:
            self.donors.drop(name)
        if result.reason is not None:
            return None
        self.generation += 1
        return self.donors.add(donor_id, namespace, key, tokens)

    def _offer_again(self, donors: Iterable[tuple[tuple[Namespace, TreeKey], str, TokenIds]]) -> None:
        for (namespace, key), _, tokens in donors:
            self._offer(namespace, key, tokens)

    def _dropped(self, donor: Donor) -> None:
        guarded("forget_donor", self.provider.forget_donor, donor.namespace, donor.donor_id)
        if self.kept is not None:
            self.kept.forget(donor)

    def _prove(self, read_slots: Callable[[], Tensor], tokens: TokenIds) -> None:
        result = proof.judge(self._proof, self.pool, read_slots, tokens)
        if result is not None:
            self.proved = result.passed
            guarded("note_self_test", self.provider.note_self_test, result)
