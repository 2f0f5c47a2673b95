"""KV in fp8, in a vLLM of its own: answers with reuse against cold ones of the same engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semblend_core.testing import divergence
from semblend_core.testing.configurations import DOCUMENTS


@pytest.fixture(scope="module", params=["fp8_e4m3", "fp8_e5m2"])
def found(run_program: Callable[..., dict[str, Any]], request: pytest.FixtureRequest) -> dict[str, Any]:
    return run_program("fp8", request.param)


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_answers_with_reuse_are_close_to_those_of_the_same_engine(found: dict[str, Any], documents: str) -> None:
    answers = found["answers"][documents]
    cold, reused = answers["cold"], answers["reused"]
    assert found["proved"], "the self-test has not passed"
    assert reused["cached_tokens"] == answers["confirmed"] > 0.5 * cold["prompt_tokens"]
    assert divergence(cold["logprobs"], reused["logprobs"]) < 0.05


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_nothing_approximate_is_found_without_reuse_or_by_another_tenant(found: dict[str, Any], documents: str) -> None:
    answers = found["answers"][documents]
    for apart in (answers["off"], answers["other"]):
        assert apart["cached_tokens"] == 0
        assert divergence(answers["cold"]["logprobs"], apart["logprobs"]) < 1e-4
