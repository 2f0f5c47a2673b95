"""A model of Gemma 3's shape: its windows turn keys faster than its other layers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semblend_core.testing import write_two_rotations_model
from semblend_core.testing.configurations import FOUR, ONE, ConfigurationTests, WithoutCorrection


@pytest.fixture(scope="module")
def two_rotations(
    run_program: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    model = write_two_rotations_model(tmp_path_factory.mktemp("two_rotations") / "model")
    return run_program("two_rotations", str(model))


class TestTwoRotations(ConfigurationTests, WithoutCorrection):
    most_divergence = {ONE: 1e-4, FOUR: 1e-4}  # noqa: RUF012

    @pytest.fixture
    def found(self, two_rotations: dict[str, Any]) -> dict[str, Any]:
        return two_rotations

    def test_both_kinds_of_layers_are_proved(self, found: dict[str, Any]) -> None:
        assert found["window"] == 128
        assert "K of layer 0 agrees" in found["says"]
        assert "in layer 2" in found["says"]

    @pytest.mark.parametrize(("kind", "layer"), [("sliding_attention", "layer 0"), ("full_attention", "layer 2")])
    def test_a_wrong_frequency_in_one_kind_of_layers_is_found_out(
        self, found: dict[str, Any], kind: str, layer: str
    ) -> None:
        assert found["wrong"][kind]["failed"]
        assert layer in found["wrong"][kind]["says"]
