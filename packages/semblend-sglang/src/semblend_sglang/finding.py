"""What may be reused for a prompt, from donors that are there now; and what becomes a donor."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from semblend_core import (
    DeclineReason,
    DonorOffer,
    LookupRequest,
    Plan,
    SemanticLookupProvider,
    Settings,
    TokenIds,
    donor_id_of,
)
from semblend_core.recompute import choose_policy
from semblend_sglang import proof
from semblend_sglang.claims import Claim, claim_of
from semblend_sglang.donors import Donor, DonorBook
from semblend_sglang.guard import guarded
from semblend_sglang.kept import KeptDonors
from semblend_sglang.loading import Load, Sources, load
from semblend_sglang.pool import KvPool
from semblend_sglang.requests import FollowedRequest, token_ids_of
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
        self.generation = 0
        """Grows with every donor that can be found: a lookup that found nothing is not repeated while it stands."""
        self.proved = False
        """The self-test passed; until then plans are found and not loaded."""
        self._stopped = False

    @property
    def why_unproved(self) -> DeclineReason | None:
        if self.proved:
            return None
        return DeclineReason.SELF_TEST_FAILED if self._stopped else DeclineReason.SELF_TEST_PENDING

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
        if not self.proved and not self._stopped:
            self._prove(read_slots()[:whole_pages], tokens)
        donor = self._offer(followed, tokens) if followed.wish.makes_donor(self.settings) else None
        if donor is not None and self.kept is not None:
            self.kept.keep(donor, tokens, self.pool.take(read_slots()[:whole_pages]))

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
                self._offer(followed, token_ids_of(donor.tokens[:there]))
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
        for donor_id in claim.donor_ids:
            spans = [span for span in claim.spans if span.donor_id == donor_id]
            donor = self.donors.get(followed.namespace, donor_id)
            if donor is not None and sources.hold_in_tree(donor, max(span.donor_end for span in spans)):
                continue
            fetch = self.kept.fetch(donor, spans) if donor is not None and self.kept is not None else None
            if fetch is None:
                if donor is not None:
                    self.donors.drop(donor.name)
                return DeclineReason.DONOR_EVICTED
            sources.fetches.append(fetch)
        return None

    def _offer(self, of: FollowedRequest, tokens: TokenIds) -> Donor | None:
        """Make ``tokens`` known under the key of a request; None where they are known, or are not wanted."""
        donor_id = donor_id_of(tokens)
        if self.donors.get(of.namespace, donor_id) is not None:
            return None
        if self.provider.offer_donor(DonorOffer(donor_id, of.namespace, tokens)).reason is not None:
            return None
        self.generation += 1
        return self.donors.add(donor_id, of.namespace, of.key, tokens)

    def _dropped(self, donor: Donor) -> None:
        guarded("forget_donor", self.provider.forget_donor, donor.namespace, donor.donor_id)
        if self.kept is not None:
            self.kept.forget(donor)

    def _prove(self, slots: Tensor, tokens: TokenIds) -> None:
        failed = proof.failure(self.pool, slots, tokens)
        if failed == "":
            self.proved = True
        elif failed is not None:
            self.stop(failed)
