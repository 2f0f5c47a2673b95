"""Served answers are compared with cold ones while SGLang has nothing else to do.

A request's answer is scored twice, as the end of a prompt whose logprobs are asked for. First behind the very KV that
the request was served with: it lies with its lineage and is taken in place, so only the answer is computed. Then behind
exact KV, which is computed for it in small pieces, as hot openings are, and stays in SGLang's own tree. Both are
SGLang's own requests and its own sums. So they differ by the KV alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semblend_core.serving import (
    ANSWER_TOKENS,
    Comparison,
    Lineage,
    QualityGuard,
    Scored,
    Stage,
    Wish,
    contain,
    token_ids_of,
)
from semblend_core.serving.tree import ExactTree, InPlace, TreeLineages
from semblend_sglang.scheduler.background import PIECE_TOKENS
from semblend_sglang.scheduler.orders import Asker, Order
from semblend_sglang.scheduler.requests import Asked, SglangLife, SglangRequests


@dataclass(frozen=True, eq=False)
class Served:
    """What it takes to compute a served request again."""

    asker: Asker
    lineage: Lineage
    """Of the KV that it was served with."""
    exact: int
    """Tokens in front of that, in whole pages, whose KV was exact. More may have become so since."""


@dataclass(eq=False)
class ScoredLife(SglangLife):
    """A request of our own that is scored. It counts as nobody's."""

    behind: Served | None = None
    """Whose KV it is scored behind; None: behind exact KV."""
    found: bool = False
    """Whether that KV is there."""


class Comparing:
    """Hands out one small order after the other, and hears what came of it."""

    def __init__(
        self,
        guard: QualityGuard[Served],
        tree: ExactTree,
        lineages: TreeLineages,
        requests: SglangRequests,
        count: Callable[[int], None],
    ) -> None:
        """``count``: is told of the tokens that have become exact."""
        self._guard, self._tree, self._lineages, self._requests, self._count = guard, tree, lineages, requests, count
        self._exact_before = 0
        """Tokens of the prompt at hand, before its last piece."""
        self._life: ScoredLife | None = None
        """Of the request that is being scored."""

    # --- A served request --------------------------------------------------------------------------------------------

    def note(self, life: SglangLife) -> None:
        """Its memory is given back. A share of the answers with reuse is compared."""
        contain("choosing what to compare", self._note, life)

    def _note(self, life: SglangLife) -> None:
        lineage = life.lineage or (None if life.in_place is None else life.in_place.lineage)
        served = life.counted and life.stage is Stage.REUSING and not life.purged and not life.retracted
        if lineage is None or not served or not life.request.finished() or not self._guard.wants(lineage):
            return
        answer = token_ids_of(list(life.request.output_ids[:ANSWER_TOKENS]))
        note = Served(Asker.of(life), lineage, self._lineages.exact_opening(life))
        self._guard.add(life.request_id, life.namespace, life.token_ids, answer, lineage, note)

    # --- In idle moments ---------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self._guard.is_on and self._guard.next() is not None

    def next_order(self) -> tuple[Comparison[Served], Order] | None:
        """What to compute now, and for which comparison; None: nothing."""
        while (comparison := self._guard.next()) is not None:
            if comparison.reused is not None or self._is_there(comparison):
                return comparison, self._order(comparison)
            # Or SGLang would compute its whole prompt at once, and let nobody in meanwhile.
            self._guard.drop(comparison, "evicted")
        return None

    def computed(self, comparison: Comparison[Served], order: Order, scored: Scored | None) -> None:
        """SGLang is through with it."""
        contain("comparing an answer", self._computed, comparison, order, scored)
        self._life = None

    def match(self, life: ScoredLife, asked: Asked) -> bool:
        """The KV that a request of ours is scored behind: whether all of it is there."""
        life.in_place = None if life.behind is None else self._served_with(life, life.behind, asked.exact_tokens)
        life.found = life.in_place is not None
        return life.found

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _order(self, comparison: Comparison[Served]) -> Order:
        asker, prompt = comparison.note.asker, comparison.prompt
        if comparison.reused is None:
            return self._scoring(comparison, behind=comparison.note)
        exact, whole = self._exact_tokens(comparison), self._whole_pages(prompt.size - 1)
        self._exact_before = exact
        if exact < whole:
            return Order(prompt[: min(exact + PIECE_TOKENS, whole)], asker)
        return self._scoring(comparison, behind=None)

    def _scoring(self, comparison: Comparison[Served], behind: Served | None) -> Order:
        def begin(request: Any) -> None:
            """In place of the life that any request of this name would have."""
            self._life = _life_of(comparison, behind, request, request.rid)
            self._requests.add(self._life)

        return Order(comparison.text, comparison.note.asker, comparison.prompt.size - 1, begin)

    def _is_there(self, comparison: Comparison[Served]) -> bool:
        """Whether it can be scored behind the KV that it was served with."""
        life = _life_of(comparison, comparison.note, None, comparison.request_id)
        return self._served_with(life, comparison.note, self._exact_tokens(comparison)) is not None

    def _served_with(self, life: ScoredLife, served: Served, exact_tokens: int) -> InPlace | None:
        """All of that very KV, also where the tree holds exact KV for the same tokens by now; None: some is gone."""
        if exact_tokens < served.exact:
            return None
        found = self._lineages.find(life, served.exact, only=served.lineage)
        whole = self._whole_pages(life.token_ids.size - 1)
        return found if found is not None and found.end == whole and found.lineage is served.lineage else None

    def _computed(self, comparison: Comparison[Served], order: Order, scored: Scored | None) -> None:
        if order.scored_from is None:
            gained = self._exact_tokens(comparison) - self._exact_before
            self._count(max(0, gained))
            if gained <= 0:
                self._guard.drop(comparison, "no_room")
        elif self._life is not None and self._life.behind is not None and not self._life.found:
            self._guard.drop(comparison, "evicted")
        elif scored is None:
            self._guard.drop(comparison, "failed")
        elif comparison.reused is None:
            comparison.reused = scored
        else:
            self._guard.finish(comparison, scored)

    def _exact_tokens(self, comparison: Comparison[Served]) -> int:
        tokens = self._tree.tokens_of(comparison.prompt)
        return self._tree.find(tokens, comparison.note.asker.key).length

    def _whole_pages(self, tokens: int) -> int:
        return tokens // self._tree.page_size * self._tree.page_size


def _life_of(comparison: Comparison[Served], behind: Served | None, request: Any, request_id: str) -> ScoredLife:
    return ScoredLife(
        request,
        request_id,
        comparison.namespace,
        comparison.prompt.tolist(),
        Wish("off" if behind is None else "on", capture=False),
        captured=True,
        counted=False,
        key=comparison.note.asker.key,
        behind=behind,
    )
