"""A model that takes images too (Qwen2-VL's shape): text is reused, and prompts with images are declined one by one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semblend_core.testing import write_vision_model
from semblend_core.testing.configurations import FOUR, ONE, ConfigurationTests, WithoutImages

STAND_INS = Path(__file__).parents[6] / "tools" / "stand_ins"


@pytest.fixture(scope="module")
def vision(run_program: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model = write_vision_model(tmp_path_factory.mktemp("vision") / "model")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(STAND_INS), prepend=os.pathsep)
        # What is imported looks for torchvision.
        return run_program("vision", str(model), alone=True)


class TestVision(ConfigurationTests, WithoutImages):
    most_divergence = {ONE: 0.005, FOUR: 0.005}  # noqa: RUF012

    @pytest.fixture
    def found(self, vision: dict[str, Any]) -> dict[str, Any]:
        return vision

    def test_positions_have_three_parts(self, found: dict[str, Any]) -> None:
        assert found["positions_of_three"]
