"""The prefix contract: an unmoved first span, or nothing that a prefix-only backend could misuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semblend_core import Namespace, Plan, SemanticPrefixResult, SemBlend, TokenIds

Text = Callable[[int, int], TokenIds]


@pytest.fixture
def prefixes(make_provider: Callable[..., SemBlend], namespace: Namespace) -> SemBlend:
    provider = make_provider({"namespace": namespace})
    provider.on_init()
    return provider


def test_without_a_namespace_nothing_is_found(provider: SemBlend, text: Text) -> None:
    provider.on_request_cached("d", text(1, 300).tolist())
    assert provider.stats().donors == 0
    assert provider.on_prefix_miss("r", text(1, 300).tolist()) is None
    assert provider.stats().lookups == 0


def test_an_unmoved_first_span_is_a_cached_prefix(prefixes: SemBlend, text: Text) -> None:
    prefixes.on_request_cached("d", text(1, 300).tolist())
    prompt = [*text(1, 300).tolist(), *text(2, 50).tolist()]
    result = prefixes.on_prefix_miss("r", prompt)
    assert isinstance(result, SemanticPrefixResult)
    assert result.num_cached_tokens == 300
    assert result.alternate_token_ids.tolist() == prompt[:300]
    assert result.skip_insert is True
    assert result.source_id == "d"


def test_the_last_token_is_left_to_compute(prefixes: SemBlend, text: Text) -> None:
    prefixes.on_request_cached("d", text(1, 300).tolist())
    result = prefixes.on_prefix_miss("r", text(1, 300).tolist())
    assert result is not None
    assert result.num_cached_tokens == 299


def test_moved_spans_give_no_prefix_and_ride_along_as_a_plan(prefixes: SemBlend, text: Text) -> None:
    prefixes.on_request_cached("d", text(1, 300).tolist())
    prefixes.on_request_cached("e", text(2, 300).tolist())
    prompt = np.concatenate([text(3, 20), text(2, 300), text(1, 300), text(4, 20)])
    result = prefixes.on_prefix_miss("r", prompt.tolist())
    assert result is not None
    assert result.num_cached_tokens == 0
    assert result.alternate_token_ids.size == 0
    assert result.source_id is None
    plan = result.metadata["plan"]
    assert isinstance(plan, Plan)
    assert plan.donor_ids == ("e", "d")


def test_a_span_moved_to_the_front_is_no_prefix(prefixes: SemBlend, text: Text) -> None:
    prefixes.on_request_cached("d", np.concatenate([text(3, 20), text(1, 300)]).tolist())
    result = prefixes.on_prefix_miss("r", text(1, 300).tolist())
    assert result is not None
    assert result.num_cached_tokens == 0


@pytest.mark.parametrize("tokens", [[-1] * 100, [0.5] * 100, [[1, 2], [3]], [2**31] * 100, None, "text", object()])
def test_invalid_tokens_are_no_prefix_and_no_donor(prefixes: SemBlend, tokens: Any) -> None:
    assert prefixes.on_prefix_miss("r", tokens) is None
    prefixes.on_request_cached("d", tokens)
    assert prefixes.stats().donors == 0


def test_an_empty_request_id_does_not_fail_the_engine(prefixes: SemBlend, text: Text) -> None:
    prefixes.on_request_cached("", text(1, 300).tolist())
    assert prefixes.on_prefix_miss("", text(1, 300).tolist()) is None
    assert prefixes.stats().donors == 0


def test_nothing_stays_pinned_behind_a_call(prefixes: SemBlend, namespace: Namespace, text: Text) -> None:
    prefixes.on_request_cached("d", text(1, 300).tolist())
    assert prefixes.on_prefix_miss("r", text(1, 300).tolist()) is not None
    assert prefixes.stats().pinned_requests == 0
    donor = prefixes.registry.record_of(namespace.digest, "d")
    assert donor is not None
    assert donor.pins == 0


def test_discovery_only_gives_no_prefix(
    make_provider: Callable[..., SemBlend], namespace: Namespace, text: Text
) -> None:
    provider = make_provider({"namespace": namespace}, discovery_only=True)
    provider.on_request_cached("d", text(1, 300).tolist())
    assert provider.on_prefix_miss("r", text(1, 300).tolist()) is None
    assert provider.stats().plans == 1


def test_shutting_down_twice_is_once(prefixes: SemBlend, text: Text) -> None:
    prefixes.on_request_cached("d", text(1, 300).tolist())
    prefixes.on_shutdown()
    prefixes.on_shutdown()
    assert prefixes.on_prefix_miss("r", text(1, 300).tolist()) is None
    prefixes.on_request_cached("e", text(1, 300).tolist())
    assert prefixes.stats().donors == 0


def test_both_contracts_share_their_donors(prefixes: SemBlend, namespace: Namespace, text: Text) -> None:
    prefixes.on_request_cached("d", text(1, 300).tolist())
    assert prefixes.forget_donor(namespace, "d") is True
    assert prefixes.on_prefix_miss("r", text(1, 300).tolist()) is None
