"""The live guard: a share of the requests with reuse is computed cold too, and what was served is held to a target.

It chooses requests, keeps those that wait to be compared, and judges what came of it. How an engine scores a text is
its adapter's. Called on the scheduler's thread only.
"""

from __future__ import annotations

import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

import numpy as np

from semblend_core.contract import Namespace, Plan, Span, TenantReport, TokenIds, as_token_ids, tenant_of
from semblend_core.quality import KINDS, QualityController, Scored, divergence, kind_of
from semblend_core.recompute.reuse import places_of
from semblend_core.serving.lineage import Lineage
from semblend_core.settings import Settings
from semblend_core.telemetry import AuditSink, NoAudit, QualityCompared, QualityNews

logger = logging.getLogger(__name__)

Note = TypeVar("Note")
Result: TypeAlias = Literal["compared", "no_room", "evicted", "forgotten", "failed"]
"""``no_room``: the engine had none for too long. ``evicted``: the served KV was gone. ``forgotten``: its tenant was
purged, or the weights changed."""

ANSWER_TOKENS = 64
"""Of an answer that are compared, its first."""
LIKELIEST = 16
"""Tokens at each position whose probabilities are compared one by one."""
MOST_WAITING = 16
"""Requests that wait until the engine has room. With more, the oldest are let go: their KV is evicted first."""
MOST_ASKED = 256
"""Requests whose answers are remembered. An engine plans some of those that wait again and again, by turns."""
LONGEST_WAIT_S = 600.0


@dataclass(eq=False)
class Comparison(Generic[Note]):
    """A served request that is to be computed cold."""

    request_id: str
    namespace: Namespace
    prompt: TokenIds
    answer: TokenIds
    kind: str
    spending: float
    note: Note
    """What the engine needs besides the tokens to compute them, such as a salt."""
    since: float
    reused: Scored | None = None
    """Its answer as it was scored behind the KV that it was served with."""

    @property
    def text(self) -> TokenIds:
        """Prompt and answer."""
        return as_token_ids(np.concatenate([self.prompt, self.answer]))


class QualityGuard(Generic[Note]):
    def __init__(
        self,
        settings: Settings,
        audit: AuditSink | None = None,
        chance: Callable[[], float] = random.random,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._audit, self._chance, self._now = settings, audit or NoAudit(), chance, now
        self._controller = QualityController(settings.quality_target)
        self._waiting: deque[Comparison[Note]] = deque()
        self._impossible: str | None = None
        self._asked: OrderedDict[str, dict[str, float | None]] = OrderedDict()
        """Who asked since spendings last changed, and what it was told by kind. Who asked last comes last."""
        self.news = QualityNews(settings.quality_tier, self._spendings())

    @property
    def is_on(self) -> bool:
        return self._settings.quality_share > 0 and self._impossible is None

    def cannot(self, why: str) -> None:
        """The engine, as it is run here, cannot compare."""
        if self.is_on:
            logger.warning("answers with reuse are not compared with cold ones: %s", why)
        self._impossible = why

    # --- What is served ----------------------------------------------------------------------------------------------

    def ask(self, plan: Plan) -> float | None:
        """What it may spend, by its tier's budget; None: it is declined. Several plans of one request count as one."""
        if not self.is_on:
            return 1.0
        kind = kind_of(places_of(plan.spans))
        answers = self._asked.setdefault(plan.request_id, {})
        self._asked.move_to_end(plan.request_id)
        if len(self._asked) > MOST_ASKED:
            self._asked.popitem(last=False)
        if kind not in answers:
            answers[kind] = self._controller.ask(kind)
        return answers[kind]

    def spending(self, spans: Sequence[Span]) -> float:
        """The same for a forecast: nothing is counted."""
        return self._controller.spending(kind_of(places_of(spans))) if self.is_on else 1.0

    def trusts(self, lineage: Lineage) -> bool:
        """Whether others may still go on from what was computed there."""
        return not self.is_on or self._controller.trusts(kind_of(lineage.places), lineage.spending)

    # --- Who is compared ---------------------------------------------------------------------------------------------

    def wants(self, lineage: Lineage) -> bool:
        """A request was served with KV of this lineage: whether to compare its answer."""
        if not self.is_on:
            return False
        return self._controller.is_tried(kind_of(lineage.places)) or self._chance() < self._settings.quality_share

    def add(
        self,
        request_id: str,
        namespace: Namespace,
        prompt: TokenIds,
        answer: TokenIds,
        lineage: Lineage,
        note: Note,
    ) -> None:
        """It waits until the engine has room."""
        if not answer.size:
            return
        kind, answer = kind_of(lineage.places), answer[:ANSWER_TOKENS]
        made = Comparison(request_id, namespace, prompt, answer, kind, lineage.spending, note, self._now())
        self._waiting.append(made)
        if len(self._waiting) > MOST_WAITING:
            # Not one that is half done: it needs its KV no more. If it went, comparisons that take long never ended.
            self.drop(next(each for each in self._waiting if each.reused is None), "no_room")

    def next(self) -> Comparison[Note] | None:
        """What to compare next, if the engine has room. It stays first until it is finished or dropped."""
        while self._waiting and self._now() - self._waiting[0].since > LONGEST_WAIT_S:
            self.drop(self._waiting[0], "no_room")
        return self._waiting[0] if self._waiting else None

    def is_waiting(self, comparison: Comparison[Note]) -> bool:
        """Whether it was not dropped meanwhile."""
        return any(each is comparison for each in self._waiting)

    # --- What came of it ---------------------------------------------------------------------------------------------

    def finish(self, comparison: Comparison[Note], cold: Scored) -> None:
        """It was scored behind exact KV too."""
        if not self.is_waiting(comparison) or comparison.reused is None:
            return
        self._waiting.remove(comparison)
        found = divergence(cold, comparison.reused)
        before = self._spendings()
        self._controller.compared(comparison.kind, comparison.spending, found.agreement)
        self.news.compared(comparison.kind, found.agreement, found.kl)
        self.news.count("compared")
        self._tell(before)
        self._audit.emit(
            QualityCompared(
                request_id=comparison.request_id,
                namespace=comparison.namespace,
                tier=self._settings.quality_tier,
                kind=comparison.kind,
                spending=comparison.spending,
                agreement=found.agreement,
                kl=found.kl,
                positions=found.positions,
                spending_now=self._spendings()[comparison.kind],
            )
        )

    def drop(self, comparison: Comparison[Note], result: Result) -> None:
        if self.is_waiting(comparison):
            self._waiting.remove(comparison)
            self.news.count(result)

    # --- All of it ---------------------------------------------------------------------------------------------------

    def forget_tenant(self, tenant: str) -> TenantReport:
        found = self.held_by(tenant)
        for comparison in [each for each in self._waiting if tenant_of(each.namespace.digest) == tenant]:
            self.drop(comparison, "forgotten")
        return found

    def held_by(self, tenant: str) -> TenantReport:
        return TenantReport(comparisons=sum(tenant_of(each.namespace.digest) == tenant for each in self._waiting))

    def clear(self) -> None:
        """KV that waits to be compared is gone, or of other weights."""
        for comparison in list(self._waiting):
            self.drop(comparison, "forgotten")

    def new_weights(self) -> None:
        """The model is another, and may need less or more."""
        self.clear()
        before = self._spendings()
        self._controller.start_over()
        self._tell(before)

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _spendings(self) -> dict[str, float]:
        """By kind; 0: it is declined."""
        held = self._controller
        return {kind: 0.0 if held.is_declined(kind) else held.spending(kind) for kind in KINDS}

    def _tell(self, before: dict[str, float]) -> None:
        now = self._spendings()
        if now != before:
            self._asked.clear()
        self.news.spends(now)
        target = self._settings.quality_target
        for kind in KINDS:
            if not now[kind] and before[kind]:
                logger.warning("plans of %s are declined: answers agree less than %g with cold ones", kind, target)
            elif now[kind] != before[kind]:
                logger.info("plans of %s compute %g times their tier's budget to agree by %g", kind, now[kind], target)
