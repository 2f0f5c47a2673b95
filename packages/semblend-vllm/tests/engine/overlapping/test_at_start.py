"""What vLLM's log says of SemBlend at a start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from semblend_core import SelfTestResult, SelfTestState


def test_one_line_says_what_is_on_and_one_that_the_self_test_has_passed(
    new_overlapping: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "semblend_vllm"), caplog.at_level(logging.INFO, "semblend_core"):
        side = new_overlapping().side
        side.self_test.hear({0: SelfTestResult(SelfTestState.PASSED, "turned K agrees to 1e-05")})
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    ours = [line for line in said if "SemBlend" in line]
    assert len(ours) == 2
    assert " is on in vLLM 0." in ours[0]
    assert ours[1] == "SemBlend's self-test passed: turned K agrees to 1e-05"
