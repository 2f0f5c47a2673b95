"""What befalls the donor store on disk costs no request, no block and no token, in a real engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semblend_core.testing import STORE_FAULTS

HARMLESS = {"clock jumps ahead", "clock jumps back", "signals", "disk full"}
"""Donors that are there are found all the same."""
COUNTED = {
    "permission lost": "load_failed",
    "donors damaged": "donor_corrupt",
    "disk hangs": "load_failed",
    "no memory": "load_failed",
}
NOT_KEPT = {"disk full": "disk_full", "permission lost": "disk_error"}
"""What is new meanwhile."""


@pytest.fixture(scope="module")
def faults(run_program: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("donors")
    return run_program("store_faults", str(folder))


@pytest.mark.parametrize("name", STORE_FAULTS)
def test_every_request_is_served_with_the_right_tokens(faults: dict[str, Any], name: str) -> None:
    found = faults[name]
    assert found["asked"]["tokens"] == found["cold"]["tokens"]
    assert len(found["other"]["tokens"]) == 8


@pytest.mark.parametrize("name", STORE_FAULTS)
def test_reuse_goes_on_or_its_end_has_a_reason(faults: dict[str, Any], name: str) -> None:
    found = faults[name]
    before, between = found["before"], found["between"]
    confirmed = between["confirmed"] - before["confirmed"]
    reasons = {reason: count - before["declines"].get(reason, 0) for reason, count in between["declines"].items()}
    if name in HARMLESS:
        assert confirmed > 0.5 * found["cold"]["prompt_tokens"]
    else:
        assert confirmed == 0
        assert reasons[COUNTED[name]] == 1


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_cannot_be_kept_is_counted(faults: dict[str, Any], name: str) -> None:
    assert faults[name]["refused"][NOT_KEPT[name]] >= 1


@pytest.mark.parametrize("name", STORE_FAULTS)
def test_afterwards_it_is_as_before(faults: dict[str, Any], name: str) -> None:
    found = faults[name]
    assert found["after"]["confirmed"] - found["between"]["confirmed"] > 0.5 * found["cold"]["prompt_tokens"]
    assert found["free"][0] == found["free"][1], "a block is lost"
    assert found["files"][1] <= found["files"][0], "a file is left open"
