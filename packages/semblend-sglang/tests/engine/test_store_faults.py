"""What befalls the donor store costs no request, no slot and no token. The real tree, pools, store and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kept_donors import keep, serve_checked

from semblend_core import DeclineReason
from semblend_core.kv import StoreOptions
from semblend_core.serving.tree import KeptDonors
from semblend_core.testing import STORE_FAULTS, open_files, passage

REQUESTS = 3
"""Of each kind, while a fault lasts."""
HARMLESS = {"clock jumps ahead", "clock jumps back", "signals"}
"""Donors are found all the same."""
COUNTED = {
    "disk full": set(),  # What is there can be read.
    "permission lost": {DeclineReason.LOAD_FAILED},
    "donors damaged": {DeclineReason.DONOR_CORRUPT},
    "no memory": {DeclineReason.LOAD_FAILED},
}
NOT_FOUND = {DeclineReason.NO_DONORS, DeclineReason.NO_SPANS}
NOT_KEPT = {"disk full": "disk_full", "permission lost": "disk_error"}
"""What is new meanwhile."""


def document(number: int) -> list[int]:
    return passage(100 + number, 400)


def donor(number: int) -> list[int]:
    return [*passage(200 + number, 64), *document(number)]


def asked(number: int, again: int = 0) -> list[int]:
    return [*passage(300 + 10 * number + again, 80), *document(number), *passage(600 + number, 40)]


@pytest.fixture
def rig(new_rig: Callable[..., Any], tmp_path: Path) -> Iterator[Any]:
    """With donors on disk only."""
    kept = KeptDonors(StoreOptions(host_bytes=0, disk_bytes=64 * 2**20, disk_path=tmp_path))
    kept.flush()
    made = new_rig(kept=kept, lookup_budget_ms=600_000.0)
    yield made
    made.side.close()


@pytest.mark.parametrize("fault", sorted(STORE_FAULTS.keys() - {"disk hangs"}))
def test_a_fault_costs_reuse_at_most(rig: Any, tmp_path: Path, fault: str) -> None:
    """A disk that hangs is waited for, which has tests of its own."""
    for number in range(REQUESTS):
        keep(rig, donor(number), f"donor-{number}")
    files = open_files()
    with STORE_FAULTS[fault](tmp_path):
        reused = [serve_checked(rig, asked(n), f"asked-{n}", wish={"capture": False}) for n in range(REQUESTS)]
        for number in range(REQUESTS, 2 * REQUESTS):
            serve_checked(rig, donor(number), f"donor-{number}")
            rig.evict(rig.slots)
        rig.side.donors.kept.flush()
    declines = rig.side.provider.stats().declines
    if fault in HARMLESS:
        assert min(reused) > 350
    else:
        assert {reason for reason in declines if reason not in NOT_FOUND} == COUNTED[fault]
        assert all(not each for each in reused) or not COUNTED[fault]
    refused = {NOT_KEPT[fault]: REQUESTS} if fault in NOT_KEPT else {}
    assert dict(rig.side.donors.kept.store.stats().declines) == refused
    keep(rig, donor(2 * REQUESTS), f"donor-{2 * REQUESTS}")
    assert serve_checked(rig, asked(2 * REQUESTS), "afterwards") > 350, "it is not reused afterwards"
    assert open_files() <= files, "a file is left open"
