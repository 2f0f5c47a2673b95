"""Requests that go on from KV which others computed behind approximate KV: found in place, held, and grown.

What a request takes from here lies behind the exact prefix that the engine has for it. It is neither moved nor computed
again. What the request computes behind it is kept here too, so the next turn of a conversation finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor

from semblend_core.contract import Namespace, TenantReport, TokenIds
from semblend_core.serving.claims import Claim
from semblend_core.serving.lineage import Lineage, LineageBook
from semblend_core.serving.tree.exact_tree import ExactTree, TreeLife
from semblend_core.serving.tree.in_place import InPlace, Stretch
from semblend_core.serving.tree.shadow import ShadowNode, ShadowTree, shared_tokens

AGED_AFTER = 0.25
"""The part of the pool that is turned over until an unused lineage is older than all that is exact."""


class TreeLineages:
    """Called on the scheduler's thread only."""

    def __init__(self, tree: ExactTree, book: LineageBook | None = None) -> None:
        self._tree = tree
        self.book = book or LineageBook()
        self.shadow = ShadowTree(tree.page_size, tree.free, self.book.forget)
        self.generation = 0
        """Grows whenever there is more to be found."""
        self._growing: set[TreeLife] = set()
        """Admitted requests whose relocated KV is not kept yet."""

    # --- A waiting request -------------------------------------------------------------------------------------------

    def find(self, life: TreeLife, exact_tokens: int, *, only: Lineage | None = None) -> InPlace | None:
        """The longest run behind the exact prefix that some lineage holds. One token is left to be computed.

        ``only``: of this one and what it grew from, whether or not that is good enough for others.
        """
        self.shadow.drop(self.book.forget_expired())
        if not self._any_behind(life, exact_tokens):
            return None
        tokens = life.token_ids[: self._whole_pages(life.token_ids.size - 1)]
        best = self._longest(life.namespace, tokens, exact_tokens, only=None if only is None else only.line)
        if not best or best[-1][1] <= exact_tokens:
            return None
        stretches = [self._stretch(*step, tokens) for step in best if step[1] > exact_tokens]
        return InPlace(exact_tokens, tuple(stretches), self._slots(exact_tokens, stretches))

    def still_there(self, in_place: InPlace) -> bool:
        return all(self.shadow.holds(stretch.node) for stretch in in_place.stretches)

    def brings_the_same(self, life: TreeLife, claim: Claim) -> bool:
        """Whether a request under way will leave most of what ``claim`` would load for ``life`` once more."""
        return any(
            other.namespace == life.namespace
            and other.claim is not None
            and 2 * (shared_tokens(life.token_ids, other.token_ids[: other.claim.end]) - claim.start) > claim.length
            for other in self._growing
        )

    # --- A request that is computed ----------------------------------------------------------------------------------

    def hold(self, life: TreeLife) -> None:
        """What it found in place stays until ``release``."""
        if life.in_place is not None and not life.held:
            for stretch in life.in_place.stretches:
                self._hold(life, stretch.lineage, stretch.node)

    def grow(self, life: TreeLife) -> None:
        """Relocated KV is on its way into its memory: others may wait for what comes of it."""
        self._growing.add(life)

    def exact_opening(self, life: TreeLife) -> int:
        """How much of what it computes is exact, in whole pages."""
        if life.approximate_from is None:
            return life.token_ids.size
        return self._whole_pages(life.approximate_from)

    def keep(self, life: TreeLife, tokens: TokenIds, row: Tensor, owned: int) -> int:
        """Take what it has computed. Its first ``owned`` tokens are the trees' already; how many are now.

        ``row`` holds the slots of ``tokens``, and is written to where the tree has others for the same.
        """
        for lineage, until in self._places(life):
            end = self._whole_pages(tokens.size if until is None else min(until, tokens.size))
            if end <= owned:
                continue
            known, node = self.shadow.insert(lineage, tokens[lineage.start : end], row[lineage.start : end])
            self._hold(life, lineage, node)
            duplicates_end = lineage.start + known
            if duplicates_end > owned:
                self._tree.free(row[owned:duplicates_end].to(torch.int64, copy=True))
                row[owned:end] = self.shadow.slots_to(node)[owned - lineage.start :].to(row.dtype)
            lineage.confirmed = True
            self.book.use(lineage)
            self.generation += 1
            owned = end
        self._growing.discard(life)
        return owned

    def release(self, life: TreeLife) -> None:
        """Its memory is given back, or it was not admitted after all."""
        self._growing.discard(life)
        for node in life.held.values():
            self.shadow.let_go(node)
        if life.purged:
            self.shadow.drop(life.held)
        life.held.clear()

    # --- All of it ---------------------------------------------------------------------------------------------------

    def make_room(self, tokens: int, evict_exact: Callable[[int], int], pool_tokens: int) -> int:
        """Evict so many tokens, of both trees. How many went.

        What lies here ages faster than what is exact: it goes first once a part of the pool was turned over since its
        last use. Younger, it stays as long as the engine's tree has something to give, or a conversation could never
        go on in a pool that is full.
        """
        gone = self.shadow.evict(tokens, unused_for=int(AGED_AFTER * pool_tokens))
        gone += evict_exact(max(0, tokens - gone))
        if gone < tokens:
            gone += self.shadow.evict(tokens - gone)
        self.shadow.turnover += gone
        return gone

    def forget_tenant(self, tenant: str) -> TenantReport:
        """Nothing of the tenant's is found any more: what there was. What running requests hold goes with them."""
        gone = self.book.forget_tenant(tenant)
        self.shadow.drop(gone)
        self.generation += 1
        return TenantReport(lineages=len(gone))

    def held_by(self, tenant: str) -> TenantReport:
        return self.book.held_by(tenant)

    def new_weights(self) -> None:
        """Nothing of it is found any more. What running requests hold goes with them."""
        self.book.clear()
        self.shadow.evict(self.shadow.evictable_tokens)
        self.generation += 1

    def emptied(self) -> None:
        """The engine has emptied its pool."""
        self.book.clear()
        self.shadow.forget_all()
        self.generation += 1

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _any_behind(self, life: TreeLife, exact_tokens: int) -> bool:
        """Told by the first tokens: to make the ids of all takes longer than to see that nothing goes on from them."""
        if not self.book.any_begins_within(life.namespace, exact_tokens):
            return False
        whole = self._whole_pages(len(life.prompt) - 1)
        first = life.first_tokens(min(whole, exact_tokens + self.book.TOLD_APART_BY))
        return any(True for _ in self.book.behind(life.namespace, first, exact_tokens, trusted=False))

    def _longest(
        self,
        namespace: Namespace,
        tokens: TokenIds,
        reach: int,
        parent: Lineage | None = None,
        *,
        only: Collection[Lineage] | None,
    ) -> list[tuple[Lineage, int]]:
        """The way through lineages and what grew from them that leads furthest: each with the end of its part."""
        best: list[tuple[Lineage, int]] = []
        for lineage in self.book.behind(namespace, tokens, reach, parent, trusted=only is None):
            if only is not None and lineage not in only:
                continue
            matched, _ = self.shadow.match(lineage, tokens[lineage.start :])
            if not matched:
                continue
            end = lineage.start + matched
            further = self._longest(namespace, tokens, end, lineage, only=only)
            way = [(lineage, end)]
            if further and further[-1][1] > end:
                way = [(lineage, further[0][0].start), *further]
            if not best or way[-1][1] > best[-1][1]:
                best = way
        return best

    def _stretch(self, lineage: Lineage, end: int, tokens: TokenIds) -> Stretch:
        matched, node = self.shadow.match(lineage, tokens[lineage.start : end])
        assert node is not None
        assert lineage.start + matched == end
        return Stretch(lineage, end, node)

    def _slots(self, start: int, stretches: list[Stretch]) -> Tensor:
        parts = []
        for stretch in stretches:
            parts.append(self.shadow.slots_to(stretch.node)[start - stretch.lineage.start :])
            start = stretch.end
        return torch.cat(parts)

    def _places(self, life: TreeLife) -> Iterator[tuple[Lineage, int | None]]:
        """The lineages that its KV belongs to, in their order, each with its end; None: as far as it goes."""
        parent = life.in_place.lineage if life.in_place is not None else None
        claim = life.claim
        if claim is None:
            if parent is not None:
                yield parent, None
            return
        start = self._whole_pages(life.first_span)
        if parent is not None:
            yield parent, start
        if life.lineage is None:  # Kept: after new weights the same would have another name.
            life.lineage = self.book.grow(life.namespace, life.token_ids, claim, start, parent)
        yield life.lineage, None

    def _hold(self, life: TreeLife, lineage: Lineage, node: ShadowNode) -> None:
        self.shadow.hold(node)
        before = life.held.get(lineage)
        life.held[lineage] = node
        if before is not None:
            self.shadow.let_go(before)

    def _whole_pages(self, tokens: int) -> int:
        return tokens // self._tree.page_size * self._tree.page_size
