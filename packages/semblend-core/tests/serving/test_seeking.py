"""A claim is made once for a question, and stands as long as what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from semblend_core import (
    DeclineReason,
    Glimpse,
    Namespace,
    OutcomeKind,
    Plan,
    SelfTestResult,
    SelfTestState,
    SemanticLookupProvider,
    Settings,
    TokenIds,
    create_provider,
)
from semblend_core.serving import (
    Claim,
    CostGate,
    DonorBook,
    Finding,
    RequestBook,
    RequestLife,
    Seeker,
    SelfTest,
    Stage,
    claim_by_tier,
)
from semblend_core.testing import listen_to

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="float32", kv_layout="nhd", block_size=16, adapter=None, salt="a"
)
DOCUMENT, INSTRUCTION = (np.random.default_rng(seed).integers(0, 50_000, size) for seed, size in ((1, 600), (2, 50)))


class Costs(CostGate):
    """Remembers what it was asked and told."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.glimpses: list[Glimpse | None] = []
        self.asked_for: list[int] = []
        self.in_vain = 0
        self.refuses = False

    def may_pay(self, tokens: int, glimpse: Callable[[], Glimpse | None] = lambda: None) -> bool:
        self.asked_for.append(tokens)
        self.glimpses.append(glimpse())
        return not self.refuses

    def found_nothing(self) -> None:
        self.in_vain += 1


class Desk:
    """A seeker with all it needs, and one donor."""

    def __init__(self, provider: SemanticLookupProvider) -> None:
        self.lookups, self.outcomes = listen_to(provider)
        self.self_test = SelfTest(1, provider.note_self_test)
        self.self_test.hear({0: SelfTestResult(SelfTestState.PASSED, final=False)})
        self.donors: DonorBook[None] = DonorBook(provider, 100, lambda donor: None)
        self.requests: RequestBook[RequestLife] = RequestBook(provider.report_outcome)
        self.costs = Costs(Settings(), step_tokens=8192)
        self.drawn = 0.5
        self.seeker = Seeker(
            provider,
            self.requests,
            self.donors,
            self.self_test,
            self._claim_for,
            costs=self.costs,
            draw=lambda: self.drawn,
        )
        self.donors.offer(NAMESPACE, ids(DOCUMENT), None)
        self.life = RequestLife(None, "r", NAMESPACE, ids(np.concatenate([INSTRUCTION, DOCUMENT, INSTRUCTION])))
        self.requests.add(self.life)

    @staticmethod
    def _claim_for(life: RequestLife, plan: Plan) -> Claim | DeclineReason:
        return claim_by_tier(plan, "fast", 16, limit=None, correcting=None)


def ids(tokens: np.ndarray) -> TokenIds:
    array = tokens.astype(np.int32)
    array.flags.writeable = False
    return array


@pytest.fixture
def desk() -> Iterator[Desk]:
    provider = create_provider(Settings(lookup_budget_ms=60_000.0), engine="test")
    yield Desk(provider)
    provider.close()


def test_the_same_question_is_asked_once(desk: Desk) -> None:
    claim = desk.seeker.seek(desk.life, 0)
    assert claim is not None
    assert desk.seeker.seek(desk.life, 0) is claim
    assert len(desk.lookups) == 1


def test_with_another_exact_prefix_the_claim_is_made_anew(desk: Desk) -> None:
    desk.seeker.seek(desk.life, 0)
    claim = desk.seeker.seek(desk.life, 16)
    assert claim is not None
    assert claim.start == 16


def test_a_claim_does_not_outlive_the_self_test_that_allowed_it(desk: Desk) -> None:
    assert desk.seeker.seek(desk.life, 0) is not None
    desk.self_test.hear({0: SelfTestResult(SelfTestState.FAILED, "off by 0.3", final=False)})
    assert desk.seeker.seek(desk.life, 0) is None
    desk.requests.serve_without(desk.life, Stage.DECLINED, desk.self_test.why_not)
    assert [(outcome.kind, outcome.reason) for outcome in desk.outcomes] == [
        (OutcomeKind.DISCOVERY_ONLY, DeclineReason.SELF_TEST_FAILED)
    ]


def test_a_lookup_that_finds_nothing_is_told_of(desk: Desk) -> None:
    assert desk.seeker.seek(desk.life, 16) is not None
    assert desk.costs.in_vain == 0
    unknown = RequestLife(None, "unknown", NAMESPACE, ids(np.arange(700)))
    desk.requests.add(unknown)
    assert desk.seeker.seek(unknown, 16) is None
    assert desk.costs.in_vain == 1
    assert desk.costs.asked_for == [684, 684]


def test_what_a_glimpse_shows_decides_whether_it_is_looked_up(desk: Desk) -> None:
    desk.costs.refuses = True
    assert desk.seeker.seek(desk.life, 0) is None
    (glimpse,) = desk.costs.glimpses
    assert glimpse is not None
    assert glimpse.places == 1
    assert desk.life.finding is not None
    assert desk.life.finding.reason is DeclineReason.DOES_NOT_PAY
    assert desk.life.finding.covered_tokens == pytest.approx(DOCUMENT.size, rel=0.15), "what need not be kept once more"
    desk.drawn = 0.1
    drawn = RequestLife(None, "drawn", NAMESPACE, desk.life.prompt)
    desk.requests.add(drawn)
    assert desk.seeker.seek(drawn, 0) is None
    assert drawn.finding == Finding(False, DeclineReason.DOES_NOT_PAY), "one in eight is kept all the same"
    desk.drawn = 0.5
    unknown = RequestLife(None, "unknown", NAMESPACE, ids(np.arange(700)))
    desk.requests.add(unknown)
    assert desk.seeker.seek(unknown, 0) is None
    assert unknown.finding == Finding(False, DeclineReason.NO_SPANS)
    phrases = np.concatenate([DOCUMENT[at : at + 40] for at in reversed(range(0, 600, 40))])
    shuffled = RequestLife(None, "shuffled", NAMESPACE, ids(phrases))
    desk.requests.add(shuffled)
    assert desk.seeker.seek(shuffled, 0) is None
    assert shuffled.finding == Finding(False, DeclineReason.DOES_NOT_PAY), (
        "phrases that no span is made of cover nothing"
    )
    assert desk.lookups == []
    assert desk.seeker.provider.stats().pinned_requests == 0
