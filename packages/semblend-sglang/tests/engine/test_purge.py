"""A tenant is purged between two rounds: the real tree, pools, store and files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semblend_core import TenantReport
from semblend_core.kv import StoreOptions
from semblend_core.serving.tree import KeptDonors
from semblend_core.testing import Marker, found_in_files, found_in_memory, passage
from semblend_sglang.compat.timing import next_batch

DOCUMENT = passage(2, 400)
DONOR = [*passage(1, 64), *DOCUMENT]
MARKER = Marker(DOCUMENT[100:160])


def asked(number: int = 0) -> list[int]:
    return [*passage(30 + number, 80), *DOCUMENT, *passage(60 + number, 40)]


@pytest.fixture
def rig(new_rig: Callable[..., Any], tmp_path: Path) -> Iterator[Any]:
    kept = KeptDonors(StoreOptions(host_bytes=64 * 2**20, disk_bytes=64 * 2**20, disk_path=tmp_path))
    made = new_rig(kept=kept, lookup_budget_ms=600_000.0, slots=16_384)
    yield made
    made.side.close()


def without_age(report: TenantReport) -> TenantReport:
    return replace(report, oldest_s=None)


def serve(rig: Any, prompt: list[int], rid: str, salt: str | None, **options: Any) -> int:
    request = rig.serve(prompt, rid, salt=salt, **options)
    rig.side.donors.kept.flush()
    return int(request.cached_tokens)


def test_donors_copies_and_lineages_go_and_those_of_others_stay(rig: Any, tmp_path: Path) -> None:
    for salt in ("purged", "untouched"):
        serve(rig, DONOR, f"donor of {salt}", salt)
        assert serve(rig, asked(), f"first of {salt}", salt, output_tokens=4) > 300
    held, theirs = rig.side.operator.held_by("purged"), rig.side.operator.held_by("untouched")
    assert held.donors > 0
    assert held.lineages > 0
    assert held.bytes > 0
    assert without_age(rig.side.operator.purge("purged")) == without_age(held)
    assert rig.side.operator.held_by("purged").nothing
    assert without_age(rig.side.operator.held_by("untouched")) == without_age(theirs)
    rig.check_accounts()
    assert serve(rig, asked(1), "of the purged", "purged", wish={"capture": False}) == 0
    assert serve(rig, asked(1), "of the others", "untouched") > 300
    rig.check_accounts()
    rig.check_lineages()


def test_a_byte_search_finds_nothing_but_in_sglangs_own_cache(rig: Any, tmp_path: Path) -> None:
    serve(rig, DONOR, "donor", "purged")
    ours = (rig.side.provider, rig.side.donors.book, rig.side.donors.kept, rig.side.lineages.book)
    assert any(found_in_memory(each, MARKER) for each in ours)
    rig.side.operator.purge("purged")
    assert [found_in_memory(each, MARKER) for each in ours] == [[]] * 4
    assert found_in_files(tmp_path, MARKER) == []


@pytest.mark.parametrize("stage", ["waiting", "running"])
def test_a_request_under_way_is_served_and_leaves_nothing(rig: Any, stage: str) -> None:
    serve(rig, DONOR, "donor", "purged")
    request = rig.submit(asked(), "under way", salt="purged")
    if stage == "waiting":
        rig.before_admission = lambda _: rig.side.operator.purge("purged")
    rig.step()
    rig.before_admission = lambda _: None
    if stage == "running":
        assert rig.is_approximate(request)
        rig.side.operator.purge("purged")
    rig.check_lineages()
    rig.finish(request)
    rig.side.donors.kept.flush()
    rig.check_accounts()
    assert rig.side.operator.held_by("purged").nothing
    serve(rig, DONOR, "later", "purged")
    assert rig.side.operator.held_by("purged").donors == 1, "who comes later is served as ever"


def test_an_operator_waits_for_the_end_of_a_round(rig: Any) -> None:
    serve(rig, DONOR, "donor", "purged")
    tenant = rig.namespaces.of(None, "purged").salt_digest
    reports: list[Any] = []
    operator = threading.Thread(target=lambda: reports.append(rig.side.operator.purge_between_rounds(tenant)))
    operator.start()
    scheduler = SimpleNamespace(tree_cache=rig.tree)
    while not reports:
        next_batch(lambda _: None, scheduler)  # As SGLang's loop does, with or without anything to compute.
    operator.join()
    assert reports[0].donors == 1
    assert rig.side.operator.held_by("purged").nothing
