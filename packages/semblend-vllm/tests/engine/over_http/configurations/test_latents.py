"""A model with latent attention (MLA): the rotated part of a token's latent is turned, the rest is moved as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semblend_core.testing import write_latent_model
from semblend_core.testing.configurations import FOUR, ONE, ConfigurationTests


@pytest.fixture(scope="module")
def latents(run_program: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_program("latents", str(write_latent_model(tmp_path_factory.mktemp("latents") / "model")))


class TestLatents(ConfigurationTests):
    most_divergence = {ONE: 0.01, FOUR: 0.02}  # noqa: RUF012

    @pytest.fixture
    def found(self, latents: dict[str, Any]) -> dict[str, Any]:
        return latents

    def test_vllm_keeps_latents(self, found: dict[str, Any]) -> None:
        assert found["kind"] == "MLAAttentionSpec"
        assert found["moved"]["parts"].keys() == {"latents", "keys"}

    def test_nothing_is_probed(self, found: dict[str, Any]) -> None:
        """Queries meet what attention makes of latents."""
        assert found["counted"]["probes"] == {}
