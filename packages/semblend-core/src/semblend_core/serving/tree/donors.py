"""Donors: prompts that the engine's exact tree holds, remembered as tokens.

Slots and nodes of the tree go stale, so nothing of it is kept: whoever needs a donor's KV matches its tokens again. The
provider keeps these, within its budget. Of a provider that does not give them back, a copy is kept here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from semblend_core.contract import (
    Namespace,
    Plan,
    SemanticLookupProvider,
    Span,
    TenantReport,
    TokenIds,
    as_token_ids,
    donor_id_of,
)
from semblend_core.kv.fetching import DonorFetch, fetch_donor
from semblend_core.kv.store import Tier
from semblend_core.serving.ages import Limits
from semblend_core.serving.captures import CaptureRule
from semblend_core.serving.containment import contain
from semblend_core.serving.donors import Donor, DonorBook, Price, not_known
from semblend_core.serving.earlier import EarlierDonors
from semblend_core.serving.tree.exact_tree import ExactTree, TreeLife, TreeMatch
from semblend_core.serving.tree.kept import KeptDonors
from semblend_core.serving.tree.slot_pool import SlotPool
from semblend_core.settings import Settings

logger = logging.getLogger(__name__)

_NO_TOKENS = as_token_ids([])


@dataclass(slots=True)
class TreePath:
    """Where the tree keeps a donor, if it still does: under this key, by its tokens."""

    key: Any
    own_tokens: TokenIds | None = None
    """Where nobody else has them."""


TreeDonor: TypeAlias = Donor[TreePath]


class TreeDonors:
    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        tree: ExactTree,
        pool: SlotPool,
        kept: KeptDonors | None,
        price: Price = not_known,
    ) -> None:
        self._provider, self._settings, self._tree, self._pool = provider, settings, tree, pool
        self.kept = kept
        most_tokens = pool.views.slots + (0 if kept is None else kept.most_bytes // pool.token_bytes)
        self.book: DonorBook[TreePath] = DonorBook(
            provider, settings.max_donors, self._gone, Limits.of(settings), price, self._copied, most_tokens
        )
        self._rule = CaptureRule(provider, settings, self.book.prefixes)
        self._earlier: EarlierDonors[tuple[Namespace, Any]] = EarlierDonors()

    def __len__(self) -> int:
        return len(self.book)

    def of(self, life: TreeLife, donor_id: str) -> TreeDonor | None:
        return self.book.get(life.namespace, donor_id)

    def tokens_of(self, donor: TreeDonor) -> TokenIds:
        """Empty where the provider has lost them: such a donor is found nowhere."""
        if donor.note.own_tokens is not None:
            return donor.note.own_tokens
        kept = self._provider.donor_tokens(donor.namespace, donor.donor_id)
        return _NO_TOKENS if kept is None else kept

    def promised(self, life: TreeLife, donor_id: str) -> TreeDonor | None:
        """A donor of the request's claim, as it is to be loaded."""
        return self.of(life, donor_id)

    def find(self, donor: TreeDonor, needed: int) -> TreeMatch:
        """How many of its first tokens the tree holds now, up to those that are ``needed``, in whole pages."""
        tokens = self.tokens_of(donor)[: self._whole_pages(needed)]
        return self._tree.find(self._tree.tokens_of(tokens), donor.note.key)

    # --- What becomes a donor ----------------------------------------------------------------------------------------

    def add(self, life: TreeLife, tokens: TokenIds, read_slots: Callable[[], Tensor], *, wanted: bool = True) -> None:
        """The exact tree holds ``tokens``, the first of this prompt, in these slots. ``wanted``: as a donor."""
        donor = self._offered(life, tokens) if wanted else None
        if donor is not None and (self.kept is None or self._keep(self.kept, donor, tokens, read_slots)):
            self.book.replace_prefixes(donor, tokens)

    def meet(self, life: TreeLife) -> None:
        """A request that was not seen before: donors that an earlier process left for its like can be named now."""
        if self.kept is None:
            return
        self._hear_of_left()
        named = self._earlier.seen(life.namespace.digest, (life.namespace, life.key))
        for (namespace, key), donor_id, tokens, born in named or self._earlier.some():
            self._offer(namespace, key, tokens, donor_id, born)

    def forget_tenant(self, tenant: str) -> TenantReport:
        """Every donor of the tenant, findable or left by an earlier process: what there was.

        What the engine's own tree holds stays there for exact prefixes. Copies in the store are dropped at once, and
        their bytes in the background.
        """
        self._hear_of_left()
        self._rule.forget_tenant(tenant)
        found = self.book.forget_tenant(tenant) + self._earlier.forget_tenant(tenant)
        return found if self.kept is None else found + self.kept.store.forget_tenant(tenant)

    def held_by(self, tenant: str) -> TenantReport:
        self._hear_of_left()
        found = self.book.held_by(tenant) + self._earlier.held_by(tenant)
        return found if self.kept is None else found + self.kept.store.held_by(tenant)

    def clear(self) -> None:
        self.book.clear()
        self._earlier.clear()

    # --- What is still there -----------------------------------------------------------------------------------------

    def drop_missing(self, life: TreeLife, plan: Plan) -> bool:
        """Whether a donor of the plan is gone. It is forgotten, except for what the tree still holds of it."""
        missing = False
        for donor_id in plan.donor_ids:
            donor = self.of(life, donor_id)
            if donor is None:
                self._provider.forget_donor(life.namespace, donor_id)
                missing = True
                continue
            needed = _reach(plan.spans, donor_id)
            there = self.find(donor, needed).length
            if there >= needed or self._tier(donor) is not None:
                continue
            missing = True
            tokens, born = self.tokens_of(donor)[:there], self.book.born(donor.namespace, [donor_id])
            self.book.drop(donor.name)
            by_others = self.book.prefixes.held(donor.namespace.digest, tokens)  # In the tree it is the same KV.
            if there - by_others >= self._settings.min_span_tokens:
                self._offer(donor.namespace, donor.note.key, tokens, born=born)
        return missing

    def are_of_same_tokens(self, life: TreeLife, plan: Plan) -> bool:
        """KV stands for its own tokens only: a provider's word is not enough for that."""
        donors = {donor_id: self.of(life, donor_id) for donor_id in plan.donor_ids}
        tokens = {name: _NO_TOKENS if donor is None else self.tokens_of(donor) for name, donor in donors.items()}
        for span in plan.spans:
            theirs = tokens[span.donor_id][span.donor_start : span.donor_end]
            if not np.array_equal(theirs, life.token_ids[span.target_start : span.target_end]):
                logger.error("the plan for %s would reuse KV of other tokens", life.request_id)
                return False
        return True

    def only_on_disk(self, donor: TreeDonor, spans: Sequence[Span]) -> bool:
        """Whether what ``spans`` want of it lies on disk or in LMCache and nowhere else."""
        needed = _reach(spans, donor.donor_id)
        return self._tier(donor) in (Tier.DISK, Tier.LMCACHE) and self.find(donor, needed).length < needed

    def fetch(self, donor: TreeDonor, spans: Sequence[Span]) -> DonorFetch | None:
        """Set what is kept of it on its way; None where nothing is."""
        if self.kept is None:
            return None
        return fetch_donor(self.kept.store, self._stored_as(donor.namespace), donor.donor_id, spans)

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _hear_of_left(self) -> None:
        if self.kept is not None:
            left = self.kept.left
            self._earlier.found(left.popleft() for _ in range(len(left)))

    def _offered(self, life: TreeLife, tokens: TokenIds) -> TreeDonor | None:
        """The donor that a prompt is from now on; None where it is known, or is not wanted."""
        name = (life.namespace.digest, donor_id_of(tokens))
        if not self._rule.wants(life, name, tokens):
            # The tree keeps what it is asked for, whether or not by way of us.
            self.book.use_holder(life.namespace, tokens, self._settings.min_span_tokens)
            return None
        return self._offer(life.namespace, life.key, tokens, name[1])

    def _offer(
        self, namespace: Namespace, key: Any, tokens: TokenIds, donor_id: str | None = None, born: float | None = None
    ) -> TreeDonor | None:
        """Make ``tokens`` known under a key; None where they are known, or are not wanted."""
        donor = self.book.offer(namespace, tokens, TreePath(key), donor_id, born)
        if donor is not None and self._provider.donor_tokens(namespace, donor.donor_id) is None:
            donor.note.own_tokens = as_token_ids(tokens.copy())
        return donor

    def _keep(self, kept: KeptDonors, donor: TreeDonor, tokens: TokenIds, read_slots: Callable[[], Tensor]) -> bool:
        nbytes = tokens.size * self._pool.token_bytes
        accepted = contain(
            "keeping a donor's KV",
            kept.keep,
            *(self._stored_as(donor.namespace), donor.donor_id, tokens, nbytes),
            lambda: self._pool.take_slots(read_slots()[: tokens.size]),
            self.book.price(tokens.size),
        )
        return bool(accepted)

    def _gone(self, donor: TreeDonor) -> None:
        if self.kept is not None:
            self.kept.store.forget(self._stored_as(donor.namespace), donor.donor_id)

    def _copied(self, donor: TreeDonor, tokens: int) -> None:
        if self.kept is not None:
            self.kept.store.note_copied(self._stored_as(donor.namespace), donor.donor_id, tokens)

    def _tier(self, donor: TreeDonor) -> Tier | None:
        if self.kept is None:
            return None
        return self.kept.store.tier_of(self._stored_as(donor.namespace), donor.donor_id)

    def _stored_as(self, namespace: Namespace) -> Namespace:
        """How the store knows it."""
        return namespace

    def _whole_pages(self, tokens: int) -> int:
        return -(-tokens // self._tree.page_size) * self._tree.page_size


def _reach(spans: Sequence[Span], donor_id: str) -> int:
    """How many of a donor's first tokens are needed."""
    return max(span.donor_end for span in spans if span.donor_id == donor_id)
