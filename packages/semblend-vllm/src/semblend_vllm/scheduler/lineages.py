"""Lineages in vLLM. It finds blocks by a request's hashes, and those can name a lineage instead of tokens alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from semblend_core import TenantReport
from semblend_core.serving import Claim, Lineage, LineageBook
from semblend_vllm.scheduler.requests import Taken, VllmRequest, shadows

WORTH_WAITING_FOR = 0.5
"""Share of a claim that another request is loading already."""


class Lineages:
    def __init__(self, block_size: int, book: LineageBook | None = None) -> None:
        self.book = book or LineageBook()
        self.block_size = block_size
        self.holds: Callable[[Any], bool] | None = None
        """Whether vLLM has a block under this hash. None: its block pool is not known, and nothing can be taken."""
        self.generation = 0
        """Grows with every lineage that can be found."""
        self._under_way: list[VllmRequest] = []
        """Those whose claim is being loaded."""

    # --- A waiting request -------------------------------------------------------------------------------------------

    def look(self, life: VllmRequest) -> None:
        """Name the blocks of a waiting request by the lineage that has most of them behind its exact ones."""
        if self.holds is None:
            return
        if self.book.forget_expired():
            self.generation += 1
        exact = self._reach(life.true_hashes, 0, life)
        if life.looked == (self.generation, exact):
            return
        life.looked = (self.generation, exact)
        taken = self._longest(life, exact)
        if taken is None and life.taken is None:
            return
        life.taken = taken
        life.rename(self.block_size)
        if taken is not None:
            life.approximate_from = taken.exact
            self.book.use(taken.lineages[-1])

    def found(self, life: VllmRequest, computed_tokens: int) -> None:
        """So many tokens vLLM has found for it. Some block may have gone since they were looked for."""
        taken = life.taken
        if taken is None or taken.end == computed_tokens:
            return
        life.taken = replace(taken, end=computed_tokens) if computed_tokens > taken.exact else None
        life.looked = None
        if life.taken is None:
            life.rename(self.block_size)

    def grow(self, life: VllmRequest, claim: Claim) -> None:
        """Name what a request will compute behind ``claim``."""
        start = claim.first_approximate // self.block_size * self.block_size
        parent = None if life.taken is None else life.taken.lineages[-1]
        life.lineage = self.book.grow(life.namespace, life.token_ids, claim, start, parent)
        life.rename(self.block_size)
        if life.taken is None:
            life.approximate_from = claim.first_approximate

    def regrow(self, life: VllmRequest, claim: Claim) -> None:
        """Its claim has other rows now, and so has what is computed behind it. Nothing of it has its old name yet."""
        self.grow(life, claim)
        assert life.lineage is not None
        life.lineage.confirmed = False
        self.generation += 1

    def give_back(self, life: VllmRequest) -> None:
        """The claim does not stand any longer. What is taken in place does."""
        life.lineage = None
        life.rename(self.block_size)

    def are_under_way(self, life: VllmRequest, claim: Claim) -> bool:
        """Whether another request is loading much of the same: it can be shared when it has landed."""
        return any(self._shared(life, other) >= WORTH_WAITING_FOR * claim.length for other in self._under_way)

    # --- A request that is computed ----------------------------------------------------------------------------------

    def loading(self, life: VllmRequest) -> None:
        if life.lineage is not None:
            # What an equal request brought may be gone, and this may not come. Who counts on it looks again.
            life.lineage.confirmed = False
            self.generation += 1
            self._under_way.append(life)

    def landed(self, life: VllmRequest) -> None:
        """What the lineage grew from is there, and what was computed behind it."""
        if life in self._under_way and life.lineage is not None:
            self._under_way.remove(life)
            # Others may load the same for other tokens between.
            life.lineage.confirmed = all(other.lineage is not life.lineage for other in self._under_way)
            self.generation += 1

    def failed(self, life: VllmRequest) -> None:
        """It never came, or nobody will know whether it did."""
        if life in self._under_way and life.lineage is not None:
            self._under_way.remove(life)
            self.book.spoil(life.lineage)
            self.generation += 1

    def forget_tenant(self, tenant: str) -> TenantReport:
        """vLLM's blocks of these lineages stay until it needs them, and nobody knows their names any more."""
        gone = self.book.forget_tenant(tenant)
        self.generation += 1
        return TenantReport(lineages=len(gone))

    def held_by(self, tenant: str) -> TenantReport:
        return self.book.held_by(tenant)

    def clear(self) -> None:
        self.book.clear()
        self.generation += 1

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _longest(self, life: VllmRequest, exact: int) -> Taken | None:
        best: Taken | None = None
        for lineages, end in self._held(life, exact, exact, ()):
            if end > (exact if best is None else best.end):
                best = Taken(lineages, exact, end)
        return best

    def _held(
        self, life: VllmRequest, exact: int, reach: int, parents: tuple[Lineage, ...]
    ) -> Iterator[tuple[tuple[Lineage, ...], int]]:
        """Every chain of lineages behind the exact tokens, and how far vLLM holds its blocks."""
        parent = parents[-1] if parents else None
        if not self.book.any_begins_within(life.namespace, reach, parent):
            return
        tokens = life.first_tokens(reach + self.book.TOLD_APART_BY)
        for lineage in self.book.behind(life.namespace, tokens, reach, parent):
            first = max(lineage.start, exact)
            named = _Named(life.true_hashes, lineage.name)
            end = self._reach(named, first // self.block_size, life)
            if end > first:
                lineages = (*parents, lineage)
                yield lineages, end
                yield from self._held(life, exact, end, lineages)

    def _reach(self, hashes: Sequence[Any], first_block: int, life: VllmRequest) -> int:
        """Up to which token vLLM holds these blocks. By halving: a walk over a long hit takes milliseconds."""
        assert self.holds is not None
        holds, last = self.holds, (life.request.num_tokens - 1) // self.block_size
        blocks = range(first_block, min(last, len(hashes)))
        if not blocks or not holds(hashes[first_block]):
            return first_block * self.block_size  # As with most lineages that are looked at.
        found = bisect_left(blocks, True, key=lambda block: not holds(hashes[block]))
        return (first_block + found) * self.block_size

    def _shared(self, life: VllmRequest, other: VllmRequest) -> int:
        """Tokens that two requests have in common from the first on, in whole blocks; 0 if they may not share."""
        if life is other or life.namespace.digest != other.namespace.digest or other.claim is None:
            return 0
        ours, theirs = life.true_hashes, other.true_hashes
        both = range(min(len(ours), len(theirs)))
        blocks = bisect_left(both, True, key=lambda block: ours[block] != theirs[block])
        end = min(blocks * self.block_size, other.claim.end)
        return max(0, end - other.claim.start)


class _Named(Sequence[Any]):
    """Hashes under a lineage's name, made when they are asked for."""

    def __init__(self, hashes: Sequence[Any], name: bytes) -> None:
        self._hashes, self._name = hashes, name

    def __len__(self) -> int:
        return len(self._hashes)

    def __getitem__(self, at: Any) -> Any:
        return shadows([self._hashes[at]], self._name)[0]
