"""vLLM's caches are reset, as when the weights change: what was computed before serves nobody, and nobody is stuck."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from semblend_vllm.compat.support import has_official_contract

Prompt = list[int]


def some(source: random.Random, length: int) -> Prompt:
    return [source.randrange(40_000) for _ in range(length)]


@pytest.fixture(params=[True, False], ids=["overlapping", "one by one"])
def overlapping(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def engine(new_overlapping: Callable[..., Any], overlapping: bool) -> Any:
    return new_overlapping(overlapping=overlapping, tokens_of_a_step=48)


@pytest.fixture
def passages(engine: Any, source: random.Random) -> tuple[Prompt, Prompt]:
    """Two, of a donor that can be found."""
    first, second = some(source, 160), some(source, 160)
    engine.add(some(source, 24) + first + second + some(source, 20))
    engine.finish()
    assert engine.side.provider.stats().donors == 1
    return first, second


@pytest.fixture
def waiting(engine: Any, passages: tuple[Prompt, Prompt], source: random.Random) -> Any:
    """A request that waits, with its blocks in hand, for rows over several steps."""
    first, second = passages
    request = engine.add(some(source, 40) + second + first + some(source, 20), 24)
    while not any(claim.begun for claim in engine.side.long_claims.unfinished()):
        engine.step()
    return request


def check_it_ends_right(engine: Any, request: Any, answer: Any) -> None:
    engine.finish()
    assert engine.answers[request.request_id] == answer(request.prompt_token_ids, request.max_tokens)
    assert (engine.worker.wrong_weights, engine.worker.leaks) == (0, 0)
    engine.check_nothing_is_left()


@pytest.mark.parametrize("connector_too", [False, True])
def test_a_donor_of_other_weights_is_found_by_nobody(
    engine: Any, passages: tuple[Prompt, Prompt], source: random.Random, answer: Any, connector_too: bool
) -> None:
    """Trainers ask for a reset of vLLM's own cache alone."""
    engine.worker.weights += 1
    assert engine.scheduler.reset_prefix_cache(reset_connector=connector_too)
    assert engine.side.provider.stats().donors == 0
    request = engine.add(some(source, 40) + passages[0] + some(source, 20), 24)
    check_it_ends_right(engine, request, answer)
    assert request.request_id not in engine.worker.may_be_approximate


def test_nor_where_vllms_own_scheduler_is_in_charge(
    new_overlapping: Callable[..., Any], source: random.Random, answer: Any
) -> None:
    if not has_official_contract():
        pytest.skip("this vLLM needs our scheduler")

    def without_ours(config: Any) -> None:
        config.scheduler_config.scheduler_cls = None

    engine = new_overlapping(change=without_ours, overlapping=False)
    passage = some(source, 160)
    engine.add(passage, 1)
    engine.finish()
    assert engine.side.provider.stats().donors == 1
    assert engine.scheduler.reset_prefix_cache()
    engine.worker.weights += 1
    assert engine.side.provider.stats().donors == 0
    request = engine.add(passage + some(source, 20), 24)
    check_it_ends_right(engine, request, answer)


def test_a_reset_that_vllm_refuses_makes_donors_unusable_all_the_same(
    engine: Any, passages: tuple[Prompt, Prompt], source: random.Random, answer: Any
) -> None:
    """A request runs, and vLLM keeps its blocks. Whoever comes later finds no donor of the time before."""
    running = engine.add(some(source, 20), 8)
    engine.step()
    assert not engine.scheduler.reset_prefix_cache()
    assert engine.side.provider.stats().donors == 0
    request = engine.add(some(source, 40) + passages[0] + some(source, 20), 24)
    check_it_ends_right(engine, request, answer)
    assert request.request_id not in engine.worker.may_be_approximate
    assert engine.answers[running.request_id] == answer(running.prompt_token_ids, 8)


@pytest.mark.parametrize("drained", [True, False])
@pytest.mark.parametrize("running_too", [True, False])
def test_a_request_that_waits_for_rows_starts_over(
    engine: Any, waiting: Any, source: random.Random, answer: Any, running_too: bool, drained: bool
) -> None:
    beside = engine.add(some(source, 20), 8) if running_too else None
    for _ in range(2 if running_too else 0):
        engine.step()
    if drained:
        engine.drain()
        engine.worker.weights += 1
    assert engine.side.first_approximate(waiting) is not None
    assert engine.scheduler.reset_prefix_cache(running_too, running_too)
    assert engine.side.provider.stats().donors == 0
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1, "nobody holds a block"
    check_it_ends_right(engine, waiting, answer)
    assert engine.has_true_hashes(waiting)
    if beside is not None:
        assert engine.answers[beside.request_id] == answer(beside.prompt_token_ids, 8)


def test_one_that_was_aborted_gives_its_blocks_back_at_once(engine: Any, waiting: Any) -> None:
    engine.abort(waiting)
    assert engine.scheduler.reset_prefix_cache(True, True)
    engine.finish()
    engine.check_nothing_is_left()


@pytest.mark.parametrize("reset", [True, False])
def test_a_pause_computes_no_rows(engine: Any, waiting: Any, answer: Any, reset: bool) -> None:
    engine.pause("PAUSED_ALL")
    engine.drain()
    before = engine.computed.total()
    for _ in range(20):
        engine.step()
    assert engine.computed.total() == before
    assert not engine.scheduler.has_requests(), "vLLM would wait for it"
    if reset:
        assert engine.scheduler.reset_prefix_cache(True, True)
        engine.worker.weights += 1
        assert engine.side.provider.stats().donors == 0
    engine.pause("UNPAUSED")
    check_it_ends_right(engine, waiting, answer)


@pytest.mark.parametrize("running_too", [True, False])
def test_while_only_new_requests_wait_rows_are_computed_where_loads_are(
    engine: Any, waiting: Any, source: random.Random, answer: Any, running_too: bool
) -> None:
    if running_too:
        engine.add(some(source, 20), 8)
        engine.step()
        engine.step()
    engine.pause("PAUSED_NEW")
    engine.drain()
    scheduler, before = engine.scheduler, engine.computed[waiting.request_id]
    goes_on = scheduler.get_num_unfinished_requests() > len(scheduler.running)  # Whether vLLM counts who holds blocks.
    engine.finish()
    assert (engine.computed[waiting.request_id] > before) == goes_on
    assert bool(engine.answers[waiting.request_id]) == goes_on
    engine.pause("UNPAUSED")
    check_it_ends_right(engine, waiting, answer)
