"""The contract proposed for LMCache: what to look up instead, and never KV that would lie at a wrong place."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from semblend_core import Namespace, Plan, SemBlend, TokenIds
from semblend_core.provider import SemanticMissProvider

Text = Callable[[int, int], TokenIds]


@pytest.fixture
def new(make_provider: Callable[..., SemBlend], namespace: Namespace) -> Callable[..., SemanticMissProvider]:
    def make(**options: bool) -> SemanticMissProvider:
        made = SemanticMissProvider(make_provider({"namespace": namespace}), namespace, **options)
        made.on_init(object(), object())
        return made

    return make


def test_a_prefix_at_its_own_place(new: Callable[..., SemanticMissProvider], text: Text) -> None:
    provider = new()
    provider.on_request_finished("d", text(1, 300).tolist(), 290)
    prompt = [*text(1, 290).tolist(), *text(2, 50).tolist()]
    found = provider.on_lookup_miss("r", prompt, 0)
    assert found is not None
    assert (found.alternate_token_ids, found.num_cached_tokens) == (prompt[:290], 290)
    assert found.skip_save is True
    assert found.source_id == "d"


def test_what_is_computed_already_is_not_offered(new: Callable[..., SemanticMissProvider], text: Text) -> None:
    provider = new()
    provider.on_request_finished("d", text(1, 300).tolist(), 300)
    assert provider.on_lookup_miss("r", [*text(1, 300).tolist(), *text(2, 50).tolist()], 300) is None


def test_moved_spans_are_for_callers_that_relocate(new: Callable[..., SemanticMissProvider], text: Text) -> None:
    donor, prompt = text(1, 400).tolist(), [*text(2, 50).tolist(), *text(1, 400)[40:340].tolist()]
    for relocates in (False, True):
        provider = new(relocates=relocates)
        provider.on_request_finished("d", donor, 400)
        found = provider.on_lookup_miss("r", prompt, 0)
        if not relocates:
            assert found is None
            continue
        assert found is not None
        assert (found.num_cached_tokens, found.source_id) == (0, "d")
        plan = pickle.loads(pickle.dumps(found.provider_metadata["plan"]))
        assert isinstance(plan, Plan)
        span = plan.spans[0]
        assert found.alternate_token_ids == donor[: span.donor_end]
        assert donor[span.donor_start : span.donor_end] == prompt[span.target_start : span.target_end]


def test_what_was_told_of_a_donor_becomes_none(new: Callable[..., SemanticMissProvider], text: Text) -> None:
    provider = new()
    provider.on_request_finished("d", text(1, 300).tolist(), 300)
    prompt = [*text(1, 300).tolist(), *text(2, 300).tolist()]
    assert provider.on_lookup_miss("r", prompt, 0) is not None
    provider.on_request_finished("r", prompt, 600)
    assert provider.on_lookup_miss("s", text(2, 300).tolist(), 0) is None
    provider.on_shutdown()
    assert provider.on_lookup_miss("t", prompt, 0) is None
