"""Who searches: SemBlend's own provider, or the one that a setting names."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from semblend_core import ProviderError, SemanticPrefixProvider, SemanticPrefixResult, SemBlend, Settings
from semblend_vllm.scheduler.providing import PROVIDER_SETTING, provider_of
from semblend_vllm.settings import VllmSettings

SETTINGS = Settings()


class OtherTokens(SemanticPrefixProvider):
    """By the prefix contract alone."""

    def on_init(self) -> None:
        """Nothing to prepare."""

    def on_prefix_miss(self, rid: str, token_ids: Sequence[int]) -> SemanticPrefixResult | None:
        return None

    def on_request_cached(self, rid: str, token_ids: Sequence[int]) -> None:
        """Nothing is kept."""

    def on_shutdown(self) -> None:
        """Nothing to release."""


class Theirs(SemBlend):
    def __init__(self) -> None:
        super().__init__(SETTINGS)


def test_without_the_setting_semblends_own_searches() -> None:
    provider, audit = provider_of(SETTINGS, VllmSettings())
    assert type(provider) is SemBlend
    assert audit is not None


def test_the_setting_names_what_makes_the_provider() -> None:
    provider, audit = provider_of(SETTINGS, VllmSettings(provider=f"{__name__}:Theirs"))
    assert isinstance(provider, Theirs)
    assert audit is provider.audit, "the cost gate writes where such a provider writes"


@pytest.mark.parametrize("named", ["no_such_module:make", f"{__name__}:NotThere", "nonsense", f"{__name__}:SETTINGS"])
def test_what_cannot_be_made_stops_the_start_and_names_the_setting(named: str) -> None:
    with pytest.raises(ProviderError, match=PROVIDER_SETTING):
        provider_of(SETTINGS, VllmSettings(provider=named))


def test_other_tokens_are_refused_with_what_to_implement() -> None:
    with pytest.raises(ProviderError, match="Implement SemanticLookupProvider"):
        provider_of(SETTINGS, VllmSettings(provider=f"{__name__}:OtherTokens"))
