"""What is found and not loaded, because nothing has proved that keys can be moved, is a decline with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semblend_core import DeclineReason, OutcomeKind, SelfTestResult, SelfTestState
from semblend_core.testing import passage

DOCUMENT = passage(2, 160)


@pytest.mark.parametrize("final", [True, False])
def test_a_self_test_that_failed_is_the_reason(new_overlapping: Callable[..., Any], final: bool) -> None:
    engine = new_overlapping()
    engine.worker._self_test = {0: SelfTestResult(SelfTestState.FAILED, "off by 0.3", final=final)}
    engine.add([*passage(1, 48), *DOCUMENT], 1)
    engine.finish()
    engine.add([*passage(3, 30), *DOCUMENT, *passage(4, 20)], 1)
    engine.finish()
    stats = engine.side.provider.stats()
    assert stats.declines[DeclineReason.SELF_TEST_FAILED] == stats.outcomes[OutcomeKind.DISCOVERY_ONLY] == 1
    engine.add([*passage(5, 30), *DOCUMENT, *passage(6, 20)], 1, {"mode": "discovery"})
    engine.finish()
    stats = engine.side.provider.stats()
    assert stats.outcomes[OutcomeKind.DISCOVERY_ONLY] == 2
    assert stats.declines[DeclineReason.SELF_TEST_FAILED] == 1, "who asks for no load is refused none"
