"""A layer profile is measured data: it round-trips, and a wrong file is named with its wrong field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semblend_core.planning import LayerProfile, LayerProfileError

PROFILE = LayerProfile("SmolLM2-135M@1", (0.0, 0.2, 0.04, 0.1, 0.01), "squad, 1430 tokens, n=15")


def write(path: Path, **changed: Any) -> Path:
    PROFILE.save(path)
    content = {**json.loads(path.read_text()), **changed}
    path.write_text(json.dumps({name: value for name, value in content.items() if value != "absent"}))
    return path


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    PROFILE.save(tmp_path / "profile.json")
    assert LayerProfile.load(tmp_path / "profile.json") == PROFILE


@pytest.mark.parametrize(
    ("tolerance", "share"), [(0.5, 0.0), (0.2, 0.0), (0.15, 0.4), (0.05, 0.8), (0.005, 1.0), (0.0, 1.0)]
)
def test_layers_are_computed_up_to_the_last_one_out_of_tolerance(tolerance: float, share: float) -> None:
    assert PROFILE.recomputed_layers(tolerance) == share


@pytest.mark.parametrize("field", ["schema", "model", "deviation", "measured_with"])
def test_a_missing_field_is_named_with_its_file(tmp_path: Path, field: str) -> None:
    path = write(tmp_path / "profile.json", **{field: "absent"})
    with pytest.raises(LayerProfileError, match=rf"profile\.json: field '{field}' is missing"):
        LayerProfile.load(path)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"schema": "other"}, "schema is 'other'"),
        ({"model": ""}, "'model'"),
        ({"model": 5}, "'model'"),
        ({"deviation": []}, "'deviation'"),
        ({"deviation": "0.5"}, "'deviation' must be a list"),
        ({"deviation": 0.5}, "'deviation' must be a list"),
        ({"deviation": [0.1, -0.1]}, "'deviation' .* -0.1 for layer 1"),
        ({"deviation": [0.1, float("nan")]}, "'deviation' .* nan for layer 1"),
        ({"deviation": [float("inf")]}, "'deviation' .* inf for layer 0"),
        ({"deviation": [0.1, None]}, "'deviation' .* None"),
        ({"deviation": [0.1, "0.2"]}, "'deviation' .* '0.2'"),
        ({"deviation": [True]}, "'deviation' .* True"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(LayerProfileError, match=rf"profile\.json: .*{problem}"):
        LayerProfile.load(write(tmp_path / "profile.json", **changed))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b"\xff\xfe"])
def test_a_file_that_is_no_profile_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "profile.json").write_bytes(content)
    with pytest.raises(LayerProfileError, match=r"profile\.json"):
        LayerProfile.load(tmp_path / "profile.json")


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LayerProfileError, match="absent"):
        LayerProfile.load(tmp_path / "absent.json")
