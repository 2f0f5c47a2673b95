"""The adapter's own settings are read as core's are."""

from __future__ import annotations

import pytest

from semblend_core import SettingError
from semblend_sglang.settings import SglangSettings


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "TRUE"])
def test_an_untested_version_is_accepted_in_any_of_the_usual_words(word: str) -> None:
    assert SglangSettings.from_env({"SEMBLEND_SGLANG_FORCE_VERSION": word}).force_version is True


def test_by_default_it_is_not() -> None:
    assert SglangSettings.from_env({}).force_version is False


def test_a_word_that_is_neither_on_nor_off_is_refused() -> None:
    with pytest.raises(SettingError, match="SEMBLEND_SGLANG_FORCE_VERSION='perhaps' is not allowed"):
        SglangSettings.from_env({"SEMBLEND_SGLANG_FORCE_VERSION": "perhaps"})


@pytest.mark.parametrize("word", ["1", "true", "yes", "on"])
def test_donors_are_kept_in_any_of_the_usual_words(word: str) -> None:
    assert SglangSettings.from_env({"SEMBLEND_SGLANG_KEEP_DONORS": word}).keep_donors is True


def test_the_provider_is_a_name() -> None:
    assert SglangSettings.from_env({"SEMBLEND_SGLANG_PROVIDER": " mine:make "}).provider == "mine:make"
