"""The suite holds for an honest provider, and each invariant's tests catch the provider that breaks it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from semblend_core.contract import (
    DonorOffer,
    LookupRequest,
    LookupResult,
    Namespace,
    OfferResult,
    Outcome,
    OutcomeKind,
    Plan,
    ProviderStats,
    TokenIds,
)
from semblend_core.provider import create_provider
from semblend_core.settings import Settings
from semblend_core.testing import ReferenceProvider, Subject, TokenEngine
from semblend_core.testing.conformance import ProviderConformance

# A slow machine must not decide; the time limit has a test of its own.
PATIENT = {"lookup_budget_ms": 60_000.0, "sharing": "all"}


class TestReferenceProvider(ProviderConformance):
    @pytest.fixture
    def make_subject(self) -> Callable[..., Subject]:
        return lambda **settings: TokenEngine(ReferenceProvider(Settings(**{**PATIENT, **settings})))


class TestSemBlend(ProviderConformance):
    @pytest.fixture
    def make_subject(self) -> Callable[..., Subject]:
        return lambda **settings: TokenEngine(
            create_provider(Settings(**{**PATIENT, **settings}), engine="token-engine")
        )


class TakesExactTokens(ReferenceProvider):
    def lookup(self, request: LookupRequest) -> LookupResult:
        return super().lookup(LookupRequest(request.request_id, request.namespace, request.token_ids, 0))


class EngineThatPublishesApproximateKv(TokenEngine):
    def _publish(self, request: LookupRequest, approximate_from: int | None) -> None:
        super()._publish(request, None)


class KeepsApproximateDonors(ReferenceProvider):
    def offer_donor(self, offer: DonorOffer) -> OfferResult:
        return super().offer_donor(DonorOffer(offer.donor_id, offer.namespace, offer.token_ids))


class IgnoresTheNamespace(ReferenceProvider):
    def lookup(self, request: LookupRequest) -> LookupResult:
        return super().lookup(
            LookupRequest(request.request_id, _ANYONE, request.token_ids, request.exact_prefix_tokens)
        )

    def offer_donor(self, offer: DonorOffer) -> OfferResult:
        return super().offer_donor(DonorOffer(offer.donor_id, _ANYONE, offer.token_ids, offer.approximate_from))


class ForgetsToCountDeclines(ReferenceProvider):
    def report_outcome(self, outcome: Outcome) -> None:
        if outcome.kind is not OutcomeKind.DECLINED:
            super().report_outcome(outcome)
        else:
            self._pins.pop(outcome.request_id, None)


class ReadsAFileInLookup(ReferenceProvider):
    def lookup(self, request: LookupRequest) -> LookupResult:
        with open(__file__) as source:
            source.readline()
        return super().lookup(request)


class HasNoTimeLimit(ReferenceProvider):
    def _find(self, request: LookupRequest, deadline: float) -> Any:
        return super()._find(request, float("inf"))


class HasNoBudget(ReferenceProvider):
    def _evict_over_budget(self) -> None:
        return


class EvictsPinnedDonors(ReferenceProvider):
    def _evict_over_budget(self) -> None:
        pins, self._pins = self._pins, {}
        super()._evict_over_budget()
        self._pins = pins


class LoadsDespiteAFailedSelfTest(ReferenceProvider):
    def restrict_to_discovery(self, reason: str) -> None:
        return


class CountsPlansAsReuse(ReferenceProvider):
    claimed = 0

    def lookup(self, request: LookupRequest) -> LookupResult:
        result = super().lookup(request)
        self.claimed += result.plan.reused_tokens if result.plan else 0
        return result

    def stats(self) -> ProviderStats:
        stats = super().stats()
        return ProviderStats(**{**{n: getattr(stats, n) for n in stats.__slots__}, "confirmed_tokens": self.claimed})


class MisplacesSpans(ReferenceProvider):
    def _find(self, request: LookupRequest, deadline: float) -> Any:
        answer = super()._find(request, deadline)
        if not isinstance(answer, Plan):
            return answer
        first = answer.spans[0]
        moved = type(first)(first.target_start, first.donor_id, max(0, first.donor_start - 1), first.length)
        return Plan(
            answer.request_id,
            answer.prompt_tokens,
            answer.exact_prefix_tokens,
            (moved, *answer.spans[1:]),
            answer.rows,
        )


class ShowsLineagesToEverybody(TokenEngine):
    def _in_place(self, namespace: Namespace, tokens: TokenIds, exact: int, reuse: bool) -> TokenIds:
        return super()._in_place(namespace, tokens, exact, True)


class HasLineagesFor(TokenEngine):
    """Of every request there is."""

    def _in_place(self, namespace: Namespace, tokens: TokenIds, exact: int, reuse: bool) -> TokenIds:
        return super()._in_place(self.taken_for(namespace), tokens, exact, reuse)

    def _grow(self, namespace: Namespace, tokens: TokenIds, kv: TokenIds, plan: Plan) -> None:
        super()._grow(self.taken_for(namespace), tokens, kv, plan)

    def taken_for(self, namespace: Namespace) -> Namespace:
        raise NotImplementedError


class HasLineagesForAnySalt(HasLineagesFor):
    def taken_for(self, namespace: Namespace) -> Namespace:
        return replace(namespace, salt=None)


class HasLineagesOfOldWeights(HasLineagesFor):
    def taken_for(self, namespace: Namespace) -> Namespace:
        return replace(namespace, salt=namespace.salt_digest, revision="whatever")


class CountsOnWhatWasEvicted(TokenEngine):
    def evict(self, tokens: int) -> None:
        for grown in self._grown:
            others = grown.kv.copy()
            others[max(grown.lineage.start, grown.kv.size - tokens) :] = -1
            grown.kv = others


_ANYONE = Namespace(
    model="any", revision="1", tokenizer="t", dtype="d", kv_layout="l", block_size=1, adapter=None, salt="tenant"
)

BROKEN: list[tuple[int, type[ReferenceProvider], type[TokenEngine]]] = [
    (1, TakesExactTokens, TokenEngine),
    (2, ReferenceProvider, EngineThatPublishesApproximateKv),
    (2, ReferenceProvider, ShowsLineagesToEverybody),
    (3, KeepsApproximateDonors, TokenEngine),
    (4, IgnoresTheNamespace, TokenEngine),
    (4, ReferenceProvider, HasLineagesForAnySalt),
    (4, ReferenceProvider, HasLineagesOfOldWeights),
    (5, ForgetsToCountDeclines, TokenEngine),
    (6, ReadsAFileInLookup, TokenEngine),
    (6, HasNoTimeLimit, TokenEngine),
    (7, HasNoBudget, TokenEngine),
    (7, EvictsPinnedDonors, TokenEngine),
    (8, LoadsDespiteAFailedSelfTest, TokenEngine),
    (9, CountsPlansAsReuse, TokenEngine),
    (9, MisplacesSpans, TokenEngine),
    (9, ReferenceProvider, CountsOnWhatWasEvicted),
]


@pytest.mark.parametrize(
    ("invariant", "provider", "engine"), BROKEN, ids=lambda value: getattr(value, "__name__", None)
)
def test_the_suite_catches_the_provider_that_breaks_an_invariant(
    invariant: int, provider: type[ReferenceProvider], engine: type[TokenEngine], caplog: pytest.LogCaptureFixture
) -> None:
    def make_subject(**settings: Any) -> Subject:
        return engine(provider(Settings(**{**PATIENT, **settings})))

    failures = 0
    for name, test in inspect.getmembers(ProviderConformance(), inspect.ismethod):
        if name.startswith(f"test_{invariant}_"):
            for arguments in _cases(test, caplog):
                caplog.clear()
                try:
                    test(make_subject, **arguments)
                except AssertionError:
                    failures += 1
    assert failures, f"no test of invariant {invariant} noticed {provider.__name__} in {engine.__name__}"


def _cases(test: Any, caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The argument sets pytest would run the test with."""
    fixed = {"caplog": caplog} if "caplog" in inspect.signature(test).parameters else {}
    for mark in getattr(test, "pytestmark", []):
        names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
        return [
            {**fixed, **dict(zip(names, values if len(names) > 1 else (values,), strict=True))}
            for values in mark.args[1]
        ]
    return [fixed]
