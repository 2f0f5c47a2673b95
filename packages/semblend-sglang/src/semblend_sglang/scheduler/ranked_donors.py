"""Donors where there are several ranks: the first knows them, and each keeps its heads of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from semblend_core import Namespace, TenantReport, TokenIds, as_token_ids, donor_id_of
from semblend_core.serving import Donor, LeftAtRanks, contain, digest_at_rank
from semblend_core.serving.tree import TreeDonor, TreeDonors, TreeMatch, TreePath
from semblend_sglang.scheduler.ranks import Ranks
from semblend_sglang.scheduler.requests import SglangLife, TreeKey

MOST_BIRTHS = 65536
"""Donors whose age is remembered for what grows from them."""

_NO_TOKENS = as_token_ids([])


@dataclass(frozen=True, slots=True)
class Path:
    """Where the trees keep a donor: what a rank needs to know of one."""

    key: TreeKey
    tokens: TokenIds
    """As many of its first as are needed."""
    born: float


@dataclass(frozen=True, slots=True)
class Noted:
    """What the first rank asked its tree while it decided. The others ask theirs: each question counts as a use."""

    paths: dict[str, Path]
    finds: list[tuple[str, int]]
    """Donors, and how many of their first tokens were looked for."""


@dataclass(frozen=True, slots=True)
class _Left:
    """Names of the donors that a rank found on its disk. Only the first rank's tokens are of use, and it has them."""

    names: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Gone:
    """The first rank knows this donor no more."""

    namespace: Namespace
    donor_id: str


class RankedDonors(TreeDonors):
    def __init__(self, ranks: Ranks, *arguments: Any) -> None:
        """``arguments``: as for one rank."""
        self._ranks = ranks
        self._noted: Noted | None = None
        self._births: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._left_at_ranks, self._told_left = LeftAtRanks(ranks.size), False
        super().__init__(*arguments)
        ranks.on(_Left, self._hear_left)
        ranks.on(_Gone, self._hear_gone)

    # --- A claim, from rank to rank ----------------------------------------------------------------------------------

    @contextmanager
    def noting(self, noted: Noted) -> Iterator[None]:
        """The first rank decides: what it asks its tree is noted."""
        self._noted = noted
        try:
            yield
        finally:
            self._noted = None

    def find(self, donor: TreeDonor, needed: int) -> TreeMatch:
        if self._noted is not None:
            tokens = self.tokens_of(donor)[: self._whole_pages(needed)]
            known = self._noted.paths.get(donor.donor_id)
            if known is None or known.tokens.size < tokens.size:
                born = self.book.born(donor.namespace, [donor.donor_id])
                self._noted.paths[donor.donor_id] = Path(donor.note.key, tokens, born)
            self._noted.finds.append((donor.donor_id, int(tokens.size)))
        return super().find(donor, needed)

    def find_as(self, noted: Noted) -> None:
        """What the first rank asked its tree, asked of this rank's."""
        for donor_id, tokens in noted.finds:
            path = noted.paths[donor_id]
            self._tree.find(self._tree.tokens_of(path.tokens[:tokens]), path.key)

    def promise(self, life: SglangLife, paths: dict[str, Path]) -> None:
        """The donors of its claim. Whatever becomes of them at the first rank, all look for the same."""
        life.donors = {}
        for donor_id in () if life.claim is None else life.claim.donor_ids:
            path = paths[donor_id]
            note = TreePath(path.key, as_token_ids(path.tokens))
            life.donors[donor_id] = Donor(life.namespace, donor_id, note, int(path.tokens.size))
            self._births[(life.namespace.digest, donor_id)] = path.born
            self._births.move_to_end((life.namespace.digest, donor_id))
        while len(self._births) > MOST_BIRTHS:
            self._births.popitem(last=False)

    def promised(self, life: Any, donor_id: str) -> TreeDonor | None:
        return dict(life.donors).get(donor_id)

    def born(self, namespace: Namespace, donor_ids: Iterable[str]) -> float:
        """When the oldest of these came, as all ranks were told."""
        known = [self._births.get((namespace.digest, donor_id)) for donor_id in donor_ids]
        return min((born for born in known if born is not None), default=self._ranks.time())

    # --- What each rank keeps ----------------------------------------------------------------------------------------

    def add(self, life: Any, tokens: TokenIds, read_slots: Callable[[], Tensor], *, wanted: bool = True) -> None:
        """Kept by all ranks or by none. The first says whether it is wanted: the dice are its own."""
        if self.kept is None:
            if self._ranks.is_first:
                super().add(life, tokens, read_slots, wanted=wanted)
            return
        offered = None
        if self._ranks.is_first and wanted:
            offered = contain("offering a donor", self._offered, life, tokens)
        if not self._ranks.exchange(offered is not None)[0]:
            return
        donor = offered or Donor(life.namespace, donor_id_of(tokens), TreePath(life.key), int(tokens.size))
        kept = bool(self._keep(self.kept, donor, tokens, read_slots))
        if not self._ranks.all_can(kept):
            self.kept.store.forget(self._stored_as(donor.namespace), donor.donor_id)
        elif offered is not None:
            self.book.replace_prefixes(offered, tokens)

    def meet(self, life: Any) -> None:
        if self.kept is not None and not self._told_left and self.kept.knows_what_was_left:
            self._told_left = True
            names = [(digest_at_rank(donor[0], self._ranks.rank), donor[1]) for donor in self.kept.left]
            self._ranks.tell(_Left(names))
        if self._ranks.is_first:
            super().meet(life)

    def forget_tenant(self, tenant: str) -> TenantReport:
        self._left_at_ranks.forget_tenant(tenant)
        return super().forget_tenant(tenant)

    def clear(self) -> None:
        self._left_at_ranks.clear()
        super().clear()

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _hear_of_left(self) -> None:
        """What this rank found is told to the first, which hears of all of them."""

    def _hear_left(self, rank: int, left: _Left) -> None:
        if not self._ranks.is_first or self.kept is None:
            return
        own = {(donor[0], donor[1]): donor for donor in self.kept.left} if rank == 0 else {}
        donors = [own.get(name, (*name, _NO_TOKENS, 0.0)) for name in left.names]
        self._earlier.found(self._left_at_ranks.told({rank: donors}))

    def _hear_gone(self, rank: int, gone: _Gone) -> None:
        if not self._ranks.is_first and self.kept is not None:
            self.kept.store.forget(self._stored_as(gone.namespace), gone.donor_id)

    def _gone(self, donor: TreeDonor) -> None:
        super()._gone(donor)
        if self.kept is not None and self._ranks.is_first:
            self._ranks.tell(_Gone(donor.namespace, donor.donor_id))

    def _stored_as(self, namespace: Namespace) -> Namespace:
        return namespace.for_rank(self._ranks.rank)


def donors_of(ranks: Ranks | None, *arguments: Any) -> TreeDonors:
    return TreeDonors(*arguments) if ranks is None else RankedDonors(ranks, *arguments)
