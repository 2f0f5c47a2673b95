"""The invariants that every adapter is held to, on SGLang's real tree, pools, allocator and admission."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from semblend_core import (
    DeclineReason,
    Namespace,
    OfferResult,
    Outcome,
    OutcomeKind,
    Plan,
    ProviderStats,
    SemanticLookupProvider,
    donor_id_of,
)
from semblend_core.serving import token_ids_of
from semblend_core.testing import Fault, Served, Subject
from semblend_core.testing.conformance import ProviderConformance
from semblend_sglang.scheduler.requests import TreeKey


class RigSubject(Subject):
    """Serves one prompt at a time. Donors are named by their content, so a served request is named alike."""

    min_span_tokens = 32
    has_lineages = True

    def __init__(self, rig: Any) -> None:
        self._rig, self.block_size = rig, rig.page_size
        self._stalled: list[Callable[[], None]] = []
        self._reported: dict[str, Outcome] = {}
        self._plans: dict[str, Plan | None] = {}
        self._watch()

    def _watch(self) -> None:
        provider, reported, plans = self._rig.side.provider, self._reported, self._plans
        report, lookup = provider.report_outcome, provider.lookup

        def reporting(outcome: Outcome) -> None:
            reported.setdefault(outcome.request_id, outcome)
            report(outcome)

        def looking_up(request: Any) -> Any:
            result = lookup(request)
            plans[request.request_id] = result.plan
            return result

        provider.report_outcome, provider.lookup = reporting, looking_up

    @property
    def provider(self) -> SemanticLookupProvider:
        provider: SemanticLookupProvider = self._rig.side.provider
        return provider

    def namespace(self, *, salt: str | None = None, adapter: str | None = None) -> Namespace:
        key = TreeKey(adapter, salt, adapter)
        namespace: Namespace = self._rig.namespaces.of(key.adapter, key.salt)
        return namespace

    def serve(
        self,
        prompt: Sequence[int],
        *,
        salt: str | None = None,
        adapter: str | None = None,
        reuse: bool = True,
        fault: Fault | None = None,
    ) -> Served:
        whole = token_ids_of(prompt)
        name = donor_id_of(whole[: whole.size // self.block_size * self.block_size])
        self._reported.pop(name, None)
        self._plans.pop(name, None)
        wish = "on" if reuse else "off"
        request = self._rig.submit(list(prompt), name, salt=salt, adapter=adapter, wish=wish)
        undo = self._suffer(fault)
        try:
            while request not in self._rig.running:
                self._rig.step()
        finally:
            undo()
        tokens = tuple(self._rig.tokens_at(self._rig.slots_of(request)))
        plan = self._plans.get(name)
        self._rig.finish(request)
        outcome = self._reported.get(name) or Outcome(name, OutcomeKind.COLD)
        in_place = outcome.confirmed_tokens or 0
        exact = int(request.cached_tokens) - in_place if plan is None else plan.exact_prefix_tokens
        return Served(name, tuple(prompt), outcome, exact, plan, tokens)

    def _suffer(self, fault: Fault | None) -> Callable[[], None]:
        side, rig = self._rig.side, self._rig
        broken = {
            Fault.LOOKUP_ERROR: (side.provider, "lookup"),
            Fault.LOAD_ERROR: (side.pool, "move_slots"),
            Fault.CAPTURE_ERROR: (side.provider, "offer_donor"),
        }
        if fault in broken:
            thing, name = broken[fault]
            setattr(thing, name, _raises)
            return lambda: self._mend(thing, name)
        if fault is Fault.CAPTURE_STALLED:
            offer = side.provider.offer_donor

            def later(donor: Any) -> OfferResult:
                self._stalled.append(lambda: offer(donor))
                return OfferResult(int(donor.token_ids.size))

            side.provider.offer_donor = later
            return lambda: delattr(side.provider, "offer_donor")
        if fault is Fault.DONOR_EVICTED:
            rig.before_admission = lambda request: rig.evict_all_but(request)
            return lambda: setattr(rig, "before_admission", lambda request: None)
        return lambda: None

    def _mend(self, thing: Any, name: str) -> None:
        delattr(thing, name)
        if thing is self._rig.side.provider and name == "lookup":
            for watched in ("lookup", "report_outcome"):
                vars(thing).pop(watched, None)
            self._watch()

    def settle(self) -> None:
        while self._stalled:
            self._stalled.pop(0)()

    def change_weights(self) -> None:
        self._rig.update_weights()

    def evict(self, tokens: int) -> None:
        self._rig.evict(tokens)

    def fail_self_test(self) -> None:
        self._rig.side.provider.restrict_to_discovery("told so by a test")

    def stats(self) -> ProviderStats:
        stats: ProviderStats = self._rig.side.provider.stats()
        return stats

    def check_integrity(self) -> None:
        self._rig.check_accounts()
        assert len(self._rig.side.requests) == 0
        assert self.stats().pinned_requests == 0


def _raises(*arguments: Any) -> Any:
    raise RuntimeError("a fault that the test asked for")


class TestOnRealTree(ProviderConformance):
    @pytest.fixture(params=[(1, "python"), (16, "rust")], ids=["page-1-python", "page-16-rust"])
    def make_subject(self, new_rig: Callable[..., Any], request: pytest.FixtureRequest) -> Callable[..., Subject]:
        page_size, core = request.param

        def make(**settings: Any) -> Subject:
            budget = {"lookup_budget_ms": 600_000.0} | settings
            return RigSubject(new_rig(page_size=page_size, core=core, slots=65536, **budget))

        return make


def test_a_decline_before_the_search_is_counted_too(new_rig: Callable[..., Any]) -> None:
    rig = new_rig()
    rig.serve([1, 2, 3], "short")
    assert rig.side.provider.stats().declines == {DeclineReason.PROMPT_TOO_SHORT: 1}
