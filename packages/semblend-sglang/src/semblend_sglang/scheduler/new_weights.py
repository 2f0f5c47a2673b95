"""When SGLang's weights become others, or its tree is emptied: nothing that was computed before is of use."""

from __future__ import annotations

import logging
from collections.abc import Callable

from semblend_core.serving import QualityGuard
from semblend_core.serving.tree import TreeDonors
from semblend_sglang.scheduler.capturing import Capturing
from semblend_sglang.scheduler.comparing import Served
from semblend_sglang.scheduler.continuing import Continuing
from semblend_sglang.scheduler.ranks import Ranks
from semblend_sglang.scheduler.requests import SglangRequests

logger = logging.getLogger(__name__)


class NewWeights:
    def __init__(
        self,
        requests: SglangRequests,
        donors: TreeDonors,
        continuing: Continuing,
        capturing: Capturing,
        guard: QualityGuard[Served],
        ranks: Ranks | None = None,
    ) -> None:
        self._requests, self._donors, self._continuing, self._capturing = requests, donors, continuing, capturing
        self._guard, self._ranks, self._changes = guard, ranks, 0
        self.times_emptied = 0
        """How often the exact tree was emptied."""

    def tree_emptied(self) -> None:
        """As for new weights: no donor is of use any longer."""
        self.times_emptied += 1
        self._capturing.old_weights_in_tree = False
        self._continuing.lineages.emptied()
        self._forget_donors()

    def without_a_flush(self, tree_is_empty: Callable[[], bool]) -> None:
        """The exact tree was not emptied: what it holds may be of the old weights, and so may what grows from it.

        So may what running requests will give to it.
        """
        self._continuing.lineages.new_weights()
        self._forget_donors()
        if tree_is_empty() and all(life.is_queued for life in self._requests):
            return
        if not self._capturing.old_weights_in_tree:
            logger.warning("SGLang changed its weights without a flush: until it is flushed no prompt becomes a donor")
        self._capturing.old_weights_in_tree = True

    def _forget_donors(self) -> None:
        self._changes += 1
        self._requests.namespaces.new_weights(None if self._ranks is None else self._ranks.name_of(self._changes))
        self._capturing.forget()
        self._donors.clear()
        self._continuing.hot.clear()
        self._guard.new_weights()
        for life in self._requests:
            if life.is_queued:
                life.namespace = self._requests.namespaces.of(life.key.adapter, life.key.salt)
                life.in_place, life.sought = None, None
                self._requests.withdraw(life)
            else:
                life.captured = True  # A part of its KV may be of the old weights.
