"""A provider that a setting names: made, or refused with the setting's name."""

from __future__ import annotations

import pytest

from semblend_core import ProviderError, SemBlend, Settings, named_provider

VARIABLE = "SEMBLEND_TOY_PROVIDER"
NOT_CALLABLE = 7


def make() -> SemBlend:
    return SemBlend(Settings())


def makes_text() -> str:
    return "no provider"


def needs_an_argument(settings: Settings) -> SemBlend:
    return SemBlend(settings)


def test_what_the_setting_names_is_called_once() -> None:
    assert isinstance(named_provider(VARIABLE, f"{__name__}:make"), SemBlend)


@pytest.mark.parametrize(
    "named",
    [
        "no_such_package:make",
        f"{__name__}:no_such_name",
        f"{__name__}",
        ":make",
        "nonsense",
        f"{__name__}:NOT_CALLABLE",
        f"{__name__}:needs_an_argument",
    ],
)
def test_what_cannot_be_called_is_refused_with_the_form_it_should_have(named: str) -> None:
    with pytest.raises(ProviderError, match=rf"{VARIABLE}=.* is not `package\.module:callable`"):
        named_provider(VARIABLE, named)


def test_what_is_no_provider_is_refused_with_what_to_implement() -> None:
    with pytest.raises(ProviderError, match="gave a str: a provider implements SemanticLookupProvider"):
        named_provider(VARIABLE, f"{__name__}:makes_text")
