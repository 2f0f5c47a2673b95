"""Donors kept on disk: behind a restart, and when the weights change. The real tree, pools, store and files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kept_donors
import pytest
from kept_donors import serve_checked

from semblend_core import DeclineReason
from semblend_core.kv import DonorStore, StoreOptions, Transfer
from semblend_core.serving.tree import KeptDonors
from semblend_core.testing import passage
from semblend_sglang.compat.weights import check_weights, resume_memory

WAITS = "semblend_core.serving.disk_waits"
LONGEST_WAIT_S = 2.0
MOST_AT_ONCE = 4
DOCUMENT = passage(2, 400)
DONOR = [*passage(1, 64), *DOCUMENT]
Start = Callable[..., Any]


def asked(number: int = 0) -> list[int]:
    return [*passage(30 + number, 80), *DOCUMENT, *passage(60 + number, 40)]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("donors/*.safetensors"))


@pytest.fixture
def start(new_rig: Callable[..., Any], tmp_path: Path) -> Iterator[Start]:
    """A process with donors on disk only; another call ends the one before, as a kill would, and begins anew."""
    running: list[Any] = []

    def begin(**options: Any) -> Any:
        while running:
            running.pop().side.donors.kept.close()
        kept = KeptDonors(StoreOptions(host_bytes=0, disk_bytes=64 * 2**20, disk_path=tmp_path))
        kept.flush()
        running.append(new_rig(kept=kept, lookup_budget_ms=600_000.0, **options))
        return running[0]

    yield begin
    while running:
        running.pop().side.close()


def keep(rig: Any, prompt: list[int] = DONOR, rid: str = "donor", **options: Any) -> None:
    kept_donors.keep(rig, prompt, rid, **options)


@pytest.mark.parametrize("page_size", [1, 16])
def test_donors_on_disk_are_found_again_after_a_restart(start: Start, page_size: int, tmp_path: Path) -> None:
    keep(start(page_size=page_size))
    assert len(files(tmp_path)) == 1
    rig = start(page_size=page_size)
    assert rig.side.provider.stats().donors == 0
    assert serve_checked(rig, asked()) > 350
    keep(rig, rid="the same again", wish="discovery")
    assert len(files(tmp_path)) == 1, "what is kept already is not kept twice"


def test_they_are_found_by_their_own_tenant_alone(start: Start) -> None:
    keep(start(), salt="tenant")
    rig = start()
    for salt in (None, "another"):
        assert serve_checked(rig, asked(), f"of {salt}", salt=salt, wish={"capture": False}) == 0
        assert rig.side.provider.stats().donors == 0
    assert serve_checked(rig, asked(), salt="tenant") > 350


@pytest.mark.parametrize("field", ["weights", "adapters"])
def test_another_checkpoint_in_the_same_place_finds_nothing(start: Start, field: str) -> None:
    before, after = (((field, state),) for state in ("before", "after"))
    keep(start(identity=before))
    assert serve_checked(start(identity=after), asked()) == 0
    assert serve_checked(start(identity=before), asked(1)) > 350


@pytest.mark.parametrize("change", ["flush", "update", "update_over_rdma"])
def test_with_the_weights_the_donors_go_for_good(start: Start, tmp_path: Path, change: str) -> None:
    rig = start()
    keep(rig)
    keep(rig, [*passage(7, 300)], "other")
    if change == "flush":
        rig.flush()
    elif change == "update":  # SGLang keeps its tree where it was told to.
        rig.update_weights()
    else:
        rig.update_over_rdma()
    rig.side.donors.kept.flush()
    assert files(tmp_path) == []
    assert serve_checked(rig, asked(), wish={"capture": False}) == 0
    if change != "flush":
        rig.flush()
    keep(rig, rid="of the new weights")
    assert serve_checked(rig, asked(1), "reuses them", wish={"capture": False}) > 350
    assert serve_checked(start(), asked(2), "after a restart, with the old ones again") == 0


def test_a_request_of_both_weights_is_no_donor(start: Start, tmp_path: Path) -> None:
    rig = start(chunk=256)
    request = rig.submit(DONOR, "half computed")
    rig.step()
    assert rig.chunked is request
    rig.update_weights()
    while request not in rig.running:
        rig.step()
    rig.finish(request)
    rig.side.donors.kept.flush()
    assert (rig.side.provider.stats().donors, files(tmp_path)) == (0, [])


def test_a_request_that_waited_for_the_new_weights_is_theirs(start: Start) -> None:
    rig = start()
    waiting = rig.submit(DONOR, "waiting")
    waiting.init_next_round_input(rig.tree)
    rig.update_weights(rig.flush)
    rig.step()
    rig.finish(waiting)
    rig.side.donors.kept.flush()
    rig.evict(rig.slots)
    assert serve_checked(rig, asked(), wish={"capture": False}) > 350
    assert serve_checked(start(), asked(1)) == 0


class SlowDisk:
    """Transfers say that they are under way until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go, self.loads = threading.Event(), 0
        done, load = Transfer.done, DonorStore.load
        monkeypatch.setattr(Transfer, "done", lambda transfer: self.let_go.is_set() and done(transfer))

        def counted(*args: Any, **kwargs: Any) -> Transfer:
            self.loads += 1
            return load(*args, **kwargs)

        monkeypatch.setattr(DonorStore, "load", counted)


def test_a_request_waits_for_the_disk_and_nobody_else_does(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(start())
    rig, disk = start(), SlowDisk(monkeypatch)
    waiting = rig.submit(asked(), "waits")
    other = rig.submit(passage(9, 200), "does not")
    assert rig.step() == [other]
    assert [rig.step() for _ in range(3)] == [[], [], []]
    assert disk.loads == 1, "it is sent for once"
    disk.let_go.set()
    rig.side.donors.kept.flush()
    assert rig.step() == [waiting]
    assert waiting.cached_tokens > 350
    assert disk.loads == 1
    for request in (waiting, other):
        rig.finish(request)
    rig.check_accounts()


def test_what_does_not_come_in_time_is_computed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(start())
    rig, _ = start(), SlowDisk(monkeypatch)
    request = rig.submit(asked(), "waits in vain")
    assert rig.step() == []
    monkeypatch.setattr(f"{WAITS}.LONGEST_WAIT_S", -1.0)
    assert rig.step() == [request]
    assert request.cached_tokens == 0
    assert rig.side.provider.stats().declines == {DeclineReason.LOAD_FAILED: 1}
    rig.finish(request)
    rig.check_accounts()


def test_only_the_wait_for_the_disk_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = start()
    rig.serve(DONOR, "donor")
    rig.side.donors.kept.flush()
    SlowDisk(monkeypatch)
    request = rig.submit(asked(), "asked")
    request.init_next_round_input(rig.tree)
    life = rig.side.claimed(request)
    assert rig.side.arrival(life) == "there", "the tree holds it"
    monkeypatch.setattr(f"{WAITS}.LONGEST_WAIT_S", 0.1)
    time.sleep(0.2)
    rig.evict(rig.slots)
    assert rig.side.arrival(life) == "coming"
    time.sleep(0.2)
    assert rig.side.arrival(life) == "given up"


def test_few_are_fetched_at_a_time_and_those_who_leave_make_room(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(start())
    rig, disk = start(), SlowDisk(monkeypatch)
    requests = [rig.submit(asked(number), f"asked-{number}") for number in range(MOST_AT_ONCE + 1)]
    rig.step()
    rig.step()
    assert disk.loads == MOST_AT_ONCE
    rig.abort(requests[0])
    rig.step()
    assert disk.loads == MOST_AT_ONCE + 1
    disk.let_go.set()
    rig.side.donors.kept.flush()
    while rig.waiting:
        rig.step()
    assert all(request.cached_tokens > 350 for request in requests[1:])


def test_a_damaged_file_costs_a_prefill(start: Start, tmp_path: Path) -> None:
    keep(start())
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 4 :: 64] = bytes(len(content[len(content) // 4 :: 64]))
    path.write_bytes(content)
    rig = start()
    assert serve_checked(rig, asked(), wish={"capture": False}) == 0
    assert rig.side.provider.stats().declines == {DeclineReason.DONOR_CORRUPT: 1}
    assert serve_checked(rig, asked(1), "again", wish={"capture": False}) == 0


def test_what_grows_from_old_weights_is_no_donor_until_the_tree_is_emptied(start: Start) -> None:
    rig = start()
    rig.serve(DONOR, "of the old weights")
    rig.update_weights()
    after = rig.serve([*DONOR, *passage(8, 40)], "of both")
    assert after.cached_tokens == len(DONOR), "SGLang was told to keep its tree"
    assert rig.side.provider.stats().donors == 0
    rig.flush()
    rig.serve(DONOR, "of the new weights")
    assert rig.side.provider.stats().donors == 1
    rig.update_weights(rig.flush)
    rig.serve(DONOR, "after an update with a flush")
    assert rig.side.provider.stats().donors == 1


def test_what_is_computed_while_others_write_the_weights_is_no_donor(start: Start) -> None:
    rig = start()
    rig.serve(DONOR, "of the old weights")
    rig.update_over_rdma(lambda: (rig.flush(), rig.serve(DONOR, "of both")))
    assert rig.side.provider.stats().donors == 0
    rig.serve([*DONOR, *passage(8, 40)], "grown from both")
    assert rig.side.provider.stats().donors == 0


def test_an_update_that_is_flushed_before_its_session_ends_needs_no_other_flush(start: Start) -> None:
    rig = start()
    rig.serve(DONOR, "of the old weights")
    rig.update_over_rdma(lambda: rig.update_weights(rig.flush))
    rig.serve(DONOR, "of the new weights")
    assert rig.side.provider.stats().donors == 1


@pytest.mark.parametrize(
    ("asked_for", "backup", "gone"),
    [(None, False, True), (["weights"], False, True), (["kv_cache"], False, False), (["weights"], True, False)],
)
def test_weights_whose_memory_was_released_are_others(
    start: Start, asked_for: list[str] | None, backup: bool, gone: bool
) -> None:
    rig = start()
    rig.serve(DONOR, "before")
    updater = rig.updater()
    updater.scheduler.server_args.enable_weights_cpu_backup = backup
    resume_memory(lambda *_: None, updater, SimpleNamespace(tags=asked_for))
    assert (rig.side.provider.stats().donors == 0) == gone


@pytest.mark.parametrize("action", ["snapshot", "reset_tensors"])
def test_a_check_that_fills_the_weights_with_noise_changes_them(start: Start, action: str) -> None:
    rig = start()
    rig.serve(DONOR, "before")
    check_weights(lambda *_: None, rig.updater(), SimpleNamespace(action=action))
    assert (rig.side.provider.stats().donors == 0) == (action == "reset_tensors")


def test_who_waited_for_others_fetches_has_time_for_its_own(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(start())
    now = [0.0]
    monkeypatch.setattr(f"{WAITS}.time", SimpleNamespace(monotonic=lambda: now[0]))
    rig, disk = start(), SlowDisk(monkeypatch)
    requests = [rig.submit(asked(number), f"asked-{number}") for number in range(MOST_AT_ONCE + 2)]
    rig.step()
    now[0] = 0.7 * LONGEST_WAIT_S
    rig.abort(requests[0])
    rig.step()
    assert disk.loads == MOST_AT_ONCE + 1
    now[0] = 1.4 * LONGEST_WAIT_S
    rig.step()
    assert rig.side.provider.stats().declines == {
        DeclineReason.LOAD_FAILED: MOST_AT_ONCE - 1,  # These were sent for at once.
        DeclineReason.ABORTED: 1,
    }
    assert [rig.side.arrival(rig.side.claimed(request)) for request in requests[-2:]] == ["coming", "coming"]
    assert disk.loads == MOST_AT_ONCE + 2


def test_who_finds_no_place_to_be_fetched_is_not_the_disks_fault(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(start())
    rig, disk = start(), SlowDisk(monkeypatch)
    monkeypatch.setattr(f"{WAITS}.MOST_AT_ONCE", 0)
    request = rig.submit(asked(), "asked")
    assert rig.step() == []
    monkeypatch.setattr(f"{WAITS}.LONGEST_WAIT_S", -1.0)
    assert rig.step() == [request]
    assert rig.side.provider.stats().declines == {DeclineReason.ALLOCATION_FAILED: 1}
    assert disk.loads == 0


def test_a_claim_that_is_dropped_takes_its_fetch_along(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(start())
    rig, _ = start(), SlowDisk(monkeypatch)
    request = rig.submit(asked(), "asked")
    rig.step()
    life = rig.side.claimed(request)
    assert life.fetch.donors
    rig.serve(asked()[:70], "its beginning", wish="off")
    request.init_next_round_input(rig.tree)
    assert life.claim is None or life.claim.start > 0
    assert not life.fetch.donors
