"""The adapter's own settings are read as core's are."""

from __future__ import annotations

import pytest

from semblend_core import SettingError
from semblend_vllm.settings import VllmSettings


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "TRUE"])
def test_an_untested_version_is_accepted_in_any_of_the_usual_words(word: str) -> None:
    assert VllmSettings.from_env({"SEMBLEND_VLLM_FORCE_VERSION": word}).force_version is True


def test_by_default_it_is_not() -> None:
    assert VllmSettings.from_env({}).force_version is False


def test_a_word_that_is_neither_on_nor_off_is_refused() -> None:
    with pytest.raises(SettingError, match="SEMBLEND_VLLM_FORCE_VERSION='perhaps' is not allowed"):
        VllmSettings.from_env({"SEMBLEND_VLLM_FORCE_VERSION": "perhaps"})
