"""A model of which some layers attend to a window, all of whose KV vLLM was told to keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semblend_core.testing.configurations import FOUR, ONE, ConfigurationTests, WithoutCorrection


@pytest.fixture(scope="module")
def windows(
    run_program: Callable[..., dict[str, Any]], helpers: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    from window_model import write_window_model

    return run_program("windows", str(write_window_model(tmp_path_factory.mktemp("windows") / "model")))


class TestWindows(ConfigurationTests, WithoutCorrection):
    most_divergence = {ONE: 0.002, FOUR: 0.005}  # noqa: RUF012

    @pytest.fixture
    def found(self, windows: dict[str, Any]) -> dict[str, Any]:
        return windows

    def test_vllm_knows_of_the_window(self, found: dict[str, Any]) -> None:
        assert found["window"] == 128
