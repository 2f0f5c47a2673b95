"""The registry from several threads at once, and pins that do not wait for a registration."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from semblend_core.contract import DeclineReason, TokenIds
from semblend_core.discovery import PreparedDonor, SpanIndex
from semblend_core.donors import DonorRegistry


def text(seed: int, size: int = 300) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 2**31 - 1, size).astype(np.int32)


def together(*jobs: Callable[[], None]) -> None:
    """Run all jobs at once and raise what any of them raised."""
    raised: list[BaseException] = []

    def contained(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=contained, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


@pytest.mark.parametrize("eviction", ["lru", "adaptive_semantic", "cost_aware"])
def test_registering_finding_pinning_and_forgetting_at_once(eviction: str) -> None:
    registry = DonorRegistry(max_bytes=400_000, eviction=eviction)
    texts = [text(seed) for seed in range(150)]
    done = threading.Event()
    pinned = [0, 0]

    def register(half: int) -> None:
        for number in range(half, 150, 2):
            namespace = "ab"[number % 3 == 0]
            reason, _ = registry.register(namespace, str(number), texts[number])
            assert reason in (None, DeclineReason.DONOR_TOO_LARGE)
            if number % 5 == 0:
                registry.forget(namespace, str(number))

    def writers() -> None:
        try:
            together(lambda: register(0), lambda: register(1))
        finally:
            done.set()

    def look_up(worker: int) -> None:
        source = np.random.default_rng(worker)
        while not done.is_set():
            query = np.concatenate([texts[int(source.integers(150))][20:200], texts[int(source.integers(150))]])
            for run in registry.find("a", query, 64, None) or ():
                records = registry.pin([run.donor])
                if records is None:
                    continue
                (record,) = records
                mine = texts[int(record.donor_id)][run.donor_start : run.donor_start + run.length]
                assert record.namespace == "a"
                assert np.array_equal(mine, query[run.start : run.end])
                pinned[worker] += 1
                registry.unpin(records)

    together(writers, lambda: look_up(0), lambda: look_up(1))
    registry.check_integrity()
    assert registry.nbytes <= registry.max_bytes
    assert sum(pinned) > 0
    registry.clear()
    registry.check_integrity()


def test_the_same_donor_offered_by_many_threads_is_kept_once() -> None:
    registry = DonorRegistry()
    answers: list[DeclineReason | None] = []
    together(*[lambda: answers.append(registry.register("a", "x", text(1))[0]) for _ in range(8)])
    assert sorted(answers, key=str) == [None, *[DeclineReason.DUPLICATE_DONOR] * 7]
    registry.check_integrity()


def test_a_pin_does_not_wait_for_a_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread is inside the index, growing it, donors can be pinned and unpinned."""
    registry = DonorRegistry()
    registry.register("a", "x", text(1))
    record = registry.record_of("a", "x")
    assert record is not None
    real_add = SpanIndex.add
    inside, go_on = threading.Event(), threading.Event()

    def slow_add(self: SpanIndex, donor: PreparedDonor, serial: int | None = None) -> int:
        inside.set()
        assert go_on.wait(30)
        return real_add(self, donor, serial)

    monkeypatch.setattr(SpanIndex, "add", slow_add)

    def look_up() -> None:
        try:
            assert inside.wait(30)
            records: list[object] = []

            def pin() -> None:
                held = registry.pin([record.serial])
                registry.unpin(held or [])
                records.extend(held or [])

            pinning = threading.Thread(target=pin)
            pinning.start()
            pinning.join(20)
            assert records == [record], "pinning waited for the registration"
        finally:
            go_on.set()

    together(lambda: _register(registry, "y"), look_up)
    registry.check_integrity()


def _register(registry: DonorRegistry, name: str) -> None:
    assert registry.register("a", name, text(2))[0] is None


def test_a_failed_registration_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = DonorRegistry()
    registry.register("a", "x", text(1))

    def out_of_memory(self: SpanIndex, donor: PreparedDonor, serial: int | None = None) -> int:
        raise MemoryError

    monkeypatch.setattr(SpanIndex, "add", out_of_memory)
    for namespace in ("a", "b"):
        with pytest.raises(MemoryError):
            registry.register(namespace, "y", text(2))
    monkeypatch.undo()
    registry.check_integrity()
    assert not registry.has_donors("b")
    assert registry.register("a", "y", text(2))[0] is None
    registry.check_integrity()
