"""Requests that go on from what others computed behind relocated KV, where it lies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from torch import Tensor

from semblend_core import Namespace, Settings, TokenIds
from semblend_core.serving import HotOpenings, Lineage, LineageBook, SelfTest, contain
from semblend_core.serving.tree import ExactTree, InPlace, TreeLineages
from semblend_sglang.scheduler.background import Background
from semblend_sglang.scheduler.orders import Asker
from semblend_sglang.scheduler.repeats import Repeats
from semblend_sglang.scheduler.requests import SglangLife

MOST_WAITS_FOR_SAME = 8
"""Rounds that a request waits for another with the same opening, which is about to leave its KV for both."""
MOST_REPEATED = 8
"""Waiting requests that are looked up again because there is more to be found: those in front."""


class Continuing:
    """What lies in place is found, held, grown, and computed exactly once many have asked for it."""

    def __init__(
        self,
        tree: ExactTree,
        settings: Settings,
        self_test: SelfTest,
        born: Callable[[Namespace, Iterable[str]], float],
        count_background: Callable[[int], None],
        trusts: Callable[[Lineage], bool] = lambda lineage: True,
        now: Callable[[], float] = lambda: time.time(),
    ) -> None:
        """``born``: when the oldest of these donors came. ``now``: tells when that is too long ago.

        ``trusts``: whether what a lineage holds is still good enough for others.
        """
        self._self_test = self_test
        self.lineages = TreeLineages(tree, LineageBook(settings.max_age_s, born, trusts, now))
        self.hot: HotOpenings[Asker] = HotOpenings(settings.exact_after)
        self.background = Background(self.hot, tree, count_background)
        self._searches = Repeats(MOST_REPEATED)

    def find(self, life: SglangLife, exact_tokens: int) -> InPlace | None:
        """What a waiting request may go on from, behind its exact prefix."""
        if life.wish.mode != "on" or not self._self_test.passed:
            return None
        question = (self.lineages.generation, exact_tokens)
        known = life.in_place
        if known is not None and (known.start != exact_tokens or not self.lineages.still_there(known)):
            known, life.sought = None, None
        if life.sought == question or not self._searches.may_ask(life.sought is None, self.lineages.generation):
            return known
        life.sought = question
        return self.lineages.find(life, exact_tokens)

    def waits_for_same(self, life: SglangLife) -> bool:
        """Whether another request brings most of its claim soon, so that both share it. For a few rounds."""
        if life.claim is None or not self.lineages.brings_the_same(life, life.claim):
            return False
        life.waited_for_same += 1
        return life.waited_for_same <= MOST_WAITS_FOR_SAME

    def admitted(self, life: SglangLife) -> InPlace | None:
        """What an admitted request goes on from. Those who ask for it are counted."""
        self._searches.one_less_in_front()
        in_place = life.in_place if life.held else None
        if in_place is not None:
            self._asked_for(life, [stretch.lineage for stretch in in_place.stretches], in_place.end)
        return in_place

    def keep(self, life: SglangLife, tokens: TokenIds, row: Tensor, owned: int) -> int:
        """An approximate request has computed ``tokens``, in these slots. How many of them the trees own now."""
        is_first = life.lineage is None
        owned = self.lineages.keep(life, tokens, row, owned)
        if is_first and life.lineage is not None:
            self._asked_for(life, [life.lineage], 0)
        return owned

    def _asked_for(self, life: SglangLife, lineages: list[Lineage], shared_tokens: int) -> None:
        if life.counted and not life.purged:
            contain("counting who asks", self.hot.note, lineages, life.token_ids, shared_tokens, Asker.of(life))
