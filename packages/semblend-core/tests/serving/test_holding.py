"""Donors that are held for a request: in memory, with the right tokens, until they are loaded or let go."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from semblend_core import DeclineReason, Namespace, Span, as_token_ids
from semblend_core.kv import PagedKv, Rotation, StoreOptions
from semblend_core.kv.store import Tier
from semblend_core.kv.store.lane import Job
from semblend_core.serving import CaptureOrder, LoadOrder, StepWork
from semblend_core.serving.messages import FetchOrder, WorkerNews
from semblend_core.serving.worker import PagedMemory, WorkerSide
from semblend_core.serving.worker import fetched as fetched_module
from semblend_core.testing.waiting import wait_until

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 10000.0}
NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="float32", kv_layout="nhd", block_size=16, adapter=None, salt="tenant"
)
TOKENS = as_token_ids(np.arange(64, dtype=np.int32))
SPAN = Span(16, "donor", 16, 32)


class Pool:
    """Twelve blocks of 16 tokens, and a worker's half over them."""

    def __init__(self, options: StoreOptions) -> None:
        torch.manual_seed(3)
        self.layers = [torch.randn(12, 2, 16, 2, 32) for _ in range(2)]
        rotation = Rotation.from_config(CONFIG)
        self.side = WorkerSide(options, PagedMemory(PagedKv.from_stacked(self.layers, 1), rotation), rotation, 0)
        self.side.capture(StepWork(captures=[CaptureOrder("donor", NAMESPACE, [1, 2, 3, 4], TOKENS)]))
        self.side.flush()

    def load(self) -> None:
        order = LoadOrder("r", NAMESPACE, [5, 6, 7, 8], (SPAN,), 32, tell_engine=False)
        self.side.load(StepWork(loads=[order]))

    @property
    def loaded(self) -> bool:
        return all(torch.equal(layer[[6, 7]], layer[[2, 3]]) for layer in self.layers)


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(StoreOptions(host_bytes=2**26))
    yield made
    made.side.close()


def test_what_is_held_lands_though_the_store_has_lost_it(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool.side.hold("r", NAMESPACE, [SPAN], TOKENS[:48]) is None
    pool.side.forget([(NAMESPACE, "donor")])
    monkeypatch.setattr(fetched_module, "LONGEST_KEPT_S", -1.0)
    pool.side.take_news()  # What was only fetched is given up by now; what is held is not.
    pool.load()
    news = pool.side.take_news()
    assert news is not None
    assert not news.failed
    assert news.landed["r"].tokens == 32
    assert pool.loaded


def test_what_was_let_go_is_gone(pool: Pool) -> None:
    assert pool.side.hold("r", NAMESPACE, [SPAN], TOKENS[:48]) is None
    pool.side.let_go("r")
    pool.side.let_go("r")
    pool.side.forget([(NAMESPACE, "donor")])
    pool.load()
    news = pool.side.take_news()
    assert news is not None
    assert news.failed == {"r": DeclineReason.DONOR_EVICTED}
    assert not pool.loaded


def test_less_may_be_loaded_than_is_held(pool: Pool) -> None:
    before = [layer[7].clone() for layer in pool.layers]
    assert pool.side.hold("r", NAMESPACE, [SPAN], TOKENS[:48]) is None
    pool.side.hold_less("r", [Span(16, "donor", 16, 16)])
    pool.load()
    for layer, untouched in zip(pool.layers, before, strict=True):
        assert torch.equal(layer[6], layer[2])
        assert torch.equal(layer[7], untouched)


def test_other_tokens_are_not_held(pool: Pool) -> None:
    other = TOKENS[:48].copy()
    other[3] += 1
    assert pool.side.hold("r", NAMESPACE, [SPAN], as_token_ids(other)) is DeclineReason.DONOR_CORRUPT


def test_a_donor_that_is_gone_is_not_held(pool: Pool) -> None:
    pool.side.forget([(NAMESPACE, "donor")])
    assert pool.side.hold("r", NAMESPACE, [SPAN], TOKENS[:48]) is DeclineReason.DONOR_EVICTED


def test_nobody_waits_for_a_disk(tmp_path: Path) -> None:
    pool = Pool(StoreOptions(host_bytes=0, disk_bytes=2**26, disk_path=tmp_path / "donors"))
    store = pool.side._store
    wait_until(lambda: store.tier_of(NAMESPACE, "donor") is Tier.DISK, "the donor is on disk")
    may_read = threading.Event()
    store._load_lane.submit(Job(may_read.wait))  # So that the read cannot have ended by chance.
    assert pool.side.hold("r", NAMESPACE, [SPAN], TOKENS[:48]) is DeclineReason.DONOR_ON_DISK
    may_read.set()
    pool.side.close()


def test_an_engine_that_computes_nothing_lets_those_who_read_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(StoreOptions(host_bytes=0, disk_bytes=2**26, disk_path=tmp_path / "donors"))
    store, may_read = pool.side._store, threading.Event()
    wait_until(lambda: store.tier_of(NAMESPACE, "donor") is Tier.DISK, "the donor is on disk")
    monkeypatch.setattr(fetched_module, "IDLE_WAIT_S", 60.0)
    store._load_lane.submit(Job(may_read.wait))
    order = FetchOrder(1, "r", NAMESPACE, (SPAN,))
    pool.side.load(StepWork(fetches=[order]))  # It computes, and so waits for nobody.
    assert not (pool.side.take_news() or WorkerNews()).fetched
    idle = threading.Thread(target=pool.side.load, args=(StepWork(computes=False),))
    idle.start()
    idle.join(0.05)
    assert idle.is_alive(), "it did not wait"
    may_read.set()
    idle.join(30)
    assert not idle.is_alive(), "it waited on though the donor had come"
    assert (pool.side.take_news() or WorkerNews()).fetched == {1: frozenset([0])}
    pool.side.load(StepWork(computes=False))  # Nothing is on its way: nothing is waited for.
    pool.side.close()


def test_a_worker_tells_the_end_of_the_forward_that_its_orders_came_with() -> None:
    side, work = Pool(StoreOptions()).side, StepWork()
    before = time.perf_counter()
    side.capture(work)
    after = time.perf_counter()
    ended = side.ended(work)
    assert ended is not None
    assert before <= ended <= after
    assert side.ended(work) is None, "asked once"
    assert side.ended(StepWork()) is None, "orders of another step, or a copy of them in another process"
    many = [StepWork() for _ in range(100)]
    for each in many:
        side.capture(each)
    told = [side.ended(each) is not None for each in many]
    assert told == [False] * 84 + [True] * 16, "those that nobody asks for are forgotten"
    side.close()
