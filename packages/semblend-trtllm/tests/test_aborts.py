"""A request may end in any state, told or not: nobody else's pages are written, and nothing stays behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from paper_engine import PaperEngine, PaperRequest

from semblend_core import DeclineReason
from semblend_core.testing import passage
from semblend_trtllm import scheduler

Make = Callable[..., PaperEngine]
DOCUMENT = passage(2, 400)


@pytest.fixture
def engine(make_engine: Make) -> PaperEngine:
    """Donors hold a document that the engine's own tree has lost. Prompts are computed in chunks."""
    engine = make_engine(engine={"chunk": 64})
    engine.serve(DOCUMENT)
    engine.settle()
    engine.forget_cache()
    return engine


def held(engine: PaperEngine) -> int:
    """Requests that the scheduler's half remembers, and KV that is held for requests."""
    side = engine.scheduler.side
    return len(side.requests) + len(engine.worker.half.side._fetched._requests)


def nothing_is_left(engine: PaperEngine) -> None:
    engine.settle()
    assert held(engine) == 0
    engine.scheduler.side.check_integrity()
    assert engine.scheduler.side.provider.stats().pinned_requests == 0
    later = engine.serve(DOCUMENT + passage(8, 40))
    assert later.found + later.promised == 384
    engine.same_as_cold(later)


def recipient(engine: PaperEngine) -> PaperRequest:
    return engine.add(DOCUMENT + passage(3, 200))


def test_while_it_waits(engine: PaperEngine) -> None:
    engine.abort(recipient(engine))
    nothing_is_left(engine)


@pytest.mark.parametrize("point", ["allocated", "built"])
def test_before_its_load_no_page_is_written(engine: PaperEngine, point: str) -> None:
    """Its blocks may be another's by then: a load into them would be wrong KV under right keys."""
    request = recipient(engine)
    pages: list[torch.Tensor] = []

    def leave_a_mark() -> None:
        engine.abort(request)
        engine.pool[request.blocks] = 0.5

    engine.at[point] = leave_a_mark
    engine.at["loaded"] = lambda: pages.append(engine.pool[request.blocks].clone())
    engine.step()
    assert torch.equal(pages[0], torch.full_like(pages[0], 0.5)), "pages of a request that was gone were written"
    assert engine.scheduler.side.provider.stats().declines[DeclineReason.ABORTED] == 1
    nothing_is_left(engine)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_while_its_prompt_or_answer_is_computed(
    engine: PaperEngine, steps: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = recipient(engine)
    for _ in range(steps):
        engine.step()
    assert request.promised == 384
    engine.abort(request, told=told)
    if not told:  # It is forgotten when nobody has mentioned it for long.
        monkeypatch.setattr(scheduler, "FORGOTTEN_AFTER_S", -1.0)
        engine.settle()
        monkeypatch.undo()
    nothing_is_left(engine)


def test_while_a_prompt_without_reuse_is_computed(engine: PaperEngine) -> None:
    request = engine.add(passage(5, 300))
    engine.step()
    engine.abort(request)
    nothing_is_left(engine)


def test_blocks_that_a_later_request_reuses_are_its_own(engine: PaperEngine) -> None:
    """The same blocks, aborted and given away in the next step, while other loads go on."""
    gone = [recipient(engine) for _ in range(3)]
    engine.at["allocated"] = lambda: [engine.abort(each) for each in gone]
    others = [engine.add(passage(seed, 500)) for seed in (6, 7)]
    engine.step()
    others += [engine.add(DOCUMENT + passage(seed, 60)) for seed in (10, 11)]
    others.append(engine.add(passage(12, 500)))
    assert {block for each in gone for block in each.blocks}
    while not all(each.is_over for each in others):
        engine.step()
    for each in others:
        engine.same_as_cold(each)
    nothing_is_left(engine)


def test_a_number_that_comes_again_is_another_request(engine: PaperEngine) -> None:
    """An allocation that died without a word: the engine asks again for the same number."""
    first = recipient(engine)
    engine.step()
    engine.abort(first, told=False)
    engine.forget_number(first)
    engine.forget_cache()
    engine._next_id = first.request_id
    again = recipient(engine)
    assert again.request_id == first.request_id
    while not again.is_over:
        engine.step()
    assert again.promised == 384
    engine.same_as_cold(again)
    nothing_is_left(engine)
