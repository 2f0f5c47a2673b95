"""A model that takes images too (Qwen2-VL's shape): text is reused, and prompts with images are declined one by one."""

from __future__ import annotations

from typing import Any

import pytest
from programs import run_program

from semblend_core.testing import write_vision_model
from semblend_core.testing.configurations import FOUR, ONE, ConfigurationTests, WithoutImages


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("vision")
    return run_program("vision", write_vision_model(folder / "model"), folder)


class TestVision(ConfigurationTests, WithoutImages):
    most_divergence = {ONE: 0.003, FOUR: 0.003}  # noqa: RUF012
    opening = 0.1

    @pytest.fixture
    def found(self, vision: dict[str, Any]) -> dict[str, Any]:
        return vision

    def test_positions_have_three_parts(self, found: dict[str, Any]) -> None:
        assert found["pool"]["positions_of_three"]
