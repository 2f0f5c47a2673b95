"""Lookups go on, and are right, while donors come and go in other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from semblend_core.contract import TokenIds
from semblend_core.discovery import Geometry, Run, SpanIndex


def text(seed: int) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 2**31 - 1, 600).astype(np.int32)


def test_every_answer_is_right_while_donors_register_and_leave(add: Callable[..., int]) -> None:
    index = SpanIndex(Geometry())
    kept = {add(index, text(seed)): seed for seed in range(8)}  # never removed: must always be found
    seeds: dict[int, int] = dict(kept)
    wrong: list[str] = []
    lookups = [0, 0]
    done = threading.Event()

    def register() -> None:
        for seed in range(100, 600):
            prepared = index.prepare(text(seed), 0)
            serial = index.add(prepared)
            seeds[serial] = seed
            if seed % 3 == 0:
                index.remove(serial)
        done.set()

    def look_up(worker: int) -> None:
        source = np.random.default_rng(worker)
        while not done.is_set() or lookups[worker] < 20:
            sure, maybe = int(source.integers(8)), int(source.integers(100, 600))
            query = np.concatenate([text(sure)[50:400], text(maybe)[:300]])
            runs = index.find(query, 0, 64)
            lookups[worker] += 1
            found = {(run.start, run.length) for run in runs or () if kept.get(run.donor) == sure}
            if found != {(0, 350)}:
                wrong.append(f"a donor that was never removed was found as {found}")
            for run in runs or ():
                seed = seeds.get(run.donor, maybe)  # Found before the writer noted it: then it is this one.
                there = text(seed)[run.donor_start : run.donor_start + run.length]
                if not np.array_equal(query[run.start : run.end], there):
                    wrong.append(f"{run} is not what donor {seed} holds")

    threads = [
        threading.Thread(target=register),
        *(threading.Thread(target=look_up, args=(n,)) for n in range(2)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    assert min(lookups) >= 20
    index.check_integrity()
    assert len(index) == 8 + 500 - len([seed for seed in range(100, 600) if seed % 3 == 0])


def test_a_lookup_does_not_wait_while_the_index_grows(add: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild pauses between chunks under the writers' lock alone; a lookup started there goes through."""
    index = SpanIndex(Geometry())
    known = add(index, text(1))
    answers: list[list[Run] | None] = []

    def pause() -> None:
        if not answers:
            reader = threading.Thread(target=lambda: answers.append(index.find(text(1), 0, 64)))
            reader.start()
            reader.join(timeout=30)

    monkeypatch.setattr("semblend_core.discovery.span_index._yield_to_other_threads", pause)
    for seed in range(100, 2000):
        if not answers:
            add(index, text(seed))
    assert len(answers) == 1, "the table never grew, or the lookup waited for it"
    assert [run.donor for run in answers[0] or ()] == [known]
