"""What several ranks' self-tests mean for reuse: all must pass, one failure stops, and a final one stays."""

from __future__ import annotations

import pytest

from semblend_core import DeclineReason, SelfTestResult, SelfTestState
from semblend_core.serving.self_test import SelfTest

PASSED = SelfTestResult(SelfTestState.PASSED, final=False)
UNCLEAR = SelfTestResult(SelfTestState.FAILED, "off by 0.03", final=False)
PLAIN = SelfTestResult(SelfTestState.FAILED, "off by 1.3")


@pytest.fixture
def noted() -> list[SelfTestResult]:
    return []


def test_every_rank_must_pass(noted: list[SelfTestResult]) -> None:
    test = SelfTest(2, noted.append)
    assert not test.hear({0: PASSED})
    assert test.why_not is DeclineReason.SELF_TEST_PENDING
    assert noted == []
    assert test.hear({1: PASSED})
    assert test.why_not is None
    assert noted == [PASSED]


def test_a_failure_that_is_not_final_can_pass_later(noted: list[SelfTestResult]) -> None:
    test = SelfTest(1, noted.append)
    test.hear({0: UNCLEAR})
    assert test.why_not is DeclineReason.SELF_TEST_FAILED
    assert test.hear({0: PASSED})
    assert noted == [UNCLEAR, PASSED]


def test_what_passed_can_fail_later(noted: list[SelfTestResult]) -> None:
    test = SelfTest(1, noted.append)
    test.hear({0: PASSED})
    test.hear({0: UNCLEAR})
    assert test.why_not is DeclineReason.SELF_TEST_FAILED


def test_what_is_noted_is_what_all_ranks_come_to(noted: list[SelfTestResult]) -> None:
    test = SelfTest(2, noted.append)
    test.hear({0: UNCLEAR})
    test.hear({0: PASSED})
    assert test.why_not is DeclineReason.SELF_TEST_PENDING
    assert [result.state for result in noted] == [SelfTestState.FAILED, SelfTestState.PENDING]


def test_a_final_failure_stays_whatever_prompts_show(noted: list[SelfTestResult]) -> None:
    test = SelfTest(1, noted.append)
    test.hear({0: PLAIN})
    assert not test.hear({0: PASSED})
    assert test.why_not is DeclineReason.SELF_TEST_FAILED
    assert noted == [PLAIN]


def test_what_was_refused_stays_refused(noted: list[SelfTestResult]) -> None:
    test = SelfTest(1, noted.append)
    test.refuse("a forward never asked for its rows")
    assert not test.hear({0: PASSED})
    assert test.why_not is DeclineReason.SELF_TEST_FAILED


def test_where_it_is_not_required_only_a_failure_stops_loading() -> None:
    test = SelfTest(1, lambda result: None, required=False)
    assert test.passed
    assert not test.wants_prompts
    test.refuse("the pool is read wrongly")
    assert not test.passed
    assert test.why_not is DeclineReason.SELF_TEST_FAILED
