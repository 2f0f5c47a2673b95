"""The shape of TensorRT-LLM's proposed semantic provider."""

from __future__ import annotations

import pytest

from semblend_core import Settings
from semblend_core.testing import passage
from semblend_trtllm.semantic import (
    SemanticKvDonor,
    SemanticKvLookupRequest,
    SemanticKvLookupResult,
    SemanticKvMaterializationKind,
    SemBlendSemanticProvider,
)

KIND = SemanticKvMaterializationKind
DOCUMENT = passage(2, 400)


@pytest.fixture
def provider() -> SemBlendSemanticProvider:
    made = SemBlendSemanticProvider(Settings(lookup_budget_ms=60_000.0, quality_tier="fast"))
    made.register_donor(SemanticKvDonor("first", DOCUMENT, None, "m", "tenant"))
    return made


def ask(
    provider: SemBlendSemanticProvider,
    tokens: list[int],
    namespace: str = "tenant",
    computed: int = 0,
    model: str = "m",
) -> SemanticKvLookupResult | None:
    found: SemanticKvLookupResult | None = provider.lookup(
        SemanticKvLookupRequest("r", tokens, None, model, namespace, computed)
    )
    return found


def test_a_prompt_that_begins_as_a_donor_does_is_an_exact_prefix(provider: SemBlendSemanticProvider) -> None:
    found = ask(provider, DOCUMENT + passage(3, 40))
    assert found is not None
    assert (found.donor_id, found.reusable_token_count) == ("first", 400)
    assert found.materialization_kind is KIND.EXACT_PREFIX
    assert list(found.donor_token_ids or ()) == DOCUMENT


def test_the_last_token_is_not_reusable(provider: SemBlendSemanticProvider) -> None:
    found = ask(provider, DOCUMENT)
    assert found is not None
    assert found.reusable_token_count == 399


def test_spans_elsewhere_are_discovery_only_and_count_nothing(provider: SemBlendSemanticProvider) -> None:
    found = ask(provider, passage(4, 80) + DOCUMENT + passage(5, 40))
    assert found is not None
    assert found.materialization_kind is KIND.DISCOVERY_ONLY
    assert found.reusable_token_count == 0
    assert found.quality_signals["covered_tokens"] > 300


def test_what_is_computed_already_is_no_find(provider: SemBlendSemanticProvider) -> None:
    found = ask(provider, DOCUMENT + passage(3, 40), computed=400)
    assert found is None or found.materialization_kind is KIND.DISCOVERY_ONLY


@pytest.mark.parametrize("other", [{"namespace": "another"}, {"model": "other"}])
def test_namespaces_and_models_share_nothing(provider: SemBlendSemanticProvider, other: dict[str, str]) -> None:
    assert ask(provider, DOCUMENT + passage(3, 40), **other) is None  # type: ignore[arg-type]


def test_a_donor_that_is_registered_again_is_replaced(provider: SemBlendSemanticProvider) -> None:
    provider.register_donor(SemanticKvDonor("first", passage(9, 300), None, "m", "tenant"))
    assert ask(provider, DOCUMENT + passage(3, 40)) is None
    found = ask(provider, passage(9, 300) + passage(3, 40))
    assert found is not None
    assert found.reusable_token_count == 300


def test_too_few_tokens_are_no_find(provider: SemBlendSemanticProvider) -> None:
    assert ask(provider, DOCUMENT[:20] + passage(3, 300)) is None
