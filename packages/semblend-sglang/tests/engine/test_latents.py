"""A model with latent attention (MLA): the rotated part of a token's latent is turned, the rest is moved as it is."""

from __future__ import annotations

from typing import Any

import pytest
from programs import run_program

from semblend_core.testing import write_latent_model
from semblend_core.testing.configurations import FOUR, ONE, ConfigurationTests


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("latents")
    return run_program("latents", write_latent_model(folder / "model", yarn=True), folder)


class TestLatents(ConfigurationTests):
    most_divergence = {ONE: 0.01, FOUR: 0.01}  # noqa: RUF012
    opening = 0.1

    @pytest.fixture
    def found(self, latents: dict[str, Any]) -> dict[str, Any]:
        return latents

    def test_latents_are_there(self, found: dict[str, Any]) -> None:
        assert found["moved"]["parts"].keys() == {"latents", "keys"}

    def test_four_documents_are_answered_as_cold(self, found: dict[str, Any]) -> None:
        answers = found["answers"][FOUR]
        assert answers["reused"]["tokens"] == answers["cold"]["tokens"]

    def test_a_conversation_goes_on_from_what_was_served(self, found: dict[str, Any]) -> None:
        for turn in found["conversation"]:
            assert turn["prompt_tokens"] - turn["cached_tokens"] < 40, "the history is computed again"

    def test_more_at_once_than_the_pool_can_hold_are_served(self, found: dict[str, Any]) -> None:
        assert found["crowd"] == 10
