"""Exact prefixes come out of the donor store, and answers are those of a cold engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paper_engine import BLOCK, PaperEngine

from semblend_core import DeclineReason
from semblend_core.testing import passage

Make = Callable[..., PaperEngine]


def stats(engine: PaperEngine) -> Any:
    engine.settle()
    return engine.scheduler.side.provider.stats()


@pytest.mark.parametrize(("layout", "backend"), [("HND", "TRTLLM"), ("NHD", "VANILLA")])
@pytest.mark.parametrize("chunk", [0, 96])
def test_a_prefix_that_the_engine_has_lost_is_loaded_and_answers_are_cold_ones(
    make_engine: Make, layout: str, backend: str, chunk: int
) -> None:
    engine = make_engine(args={"attn_backend": backend}, engine={"layout": layout, "chunk": chunk})
    document = passage(2, 400)
    first = engine.serve(document + passage(3, 30))
    engine.same_as_cold(first)
    assert first.promised == 0
    engine.settle()
    engine.forget_cache()
    again = engine.serve(document + passage(4, 50))
    assert again.found == 0
    assert again.promised == 400 // BLOCK * BLOCK
    engine.same_as_cold(again)
    found = stats(engine)
    assert found.confirmed_tokens == again.promised
    assert engine.scheduler.side.self_test.passed, "the pool was read wrongly"


def test_what_was_loaded_is_in_the_engines_own_tree_afterwards_and_is_exact(make_engine: Make) -> None:
    engine = make_engine()
    document = passage(2, 400)
    engine.serve(document)
    engine.settle()
    engine.forget_cache()
    assert engine.serve(document + passage(3, 50)).promised > 0
    later = engine.serve(document + passage(4, 50))
    assert later.found >= 384
    engine.same_as_cold(later)


def test_the_engines_own_prefix_goes_first_and_donors_go_on_behind_it(make_engine: Make) -> None:
    engine = make_engine()
    document = passage(2, 640)
    engine.serve(document)
    engine.settle()
    engine.forget_cache()
    engine.serve(document[:320], max_new=1)
    request = engine.serve(document + passage(4, 50))
    assert request.found == 320
    assert request.found + request.promised == 640
    engine.same_as_cold(request)


def test_the_last_token_is_never_offered(make_engine: Make) -> None:
    engine = make_engine()
    prompt = passage(2, 8 * BLOCK)
    engine.serve(prompt)
    engine.settle()
    engine.forget_cache()
    again = engine.serve(prompt)
    assert again.promised == 7 * BLOCK
    engine.same_as_cold(again)


@pytest.mark.parametrize("prompt", [passage(3, 80) + passage(2, 400) + passage(4, 40), passage(2, 400)[64:]])
def test_spans_elsewhere_are_found_declined_and_counted(make_engine: Make, prompt: list[int]) -> None:
    engine = make_engine()
    engine.serve(passage(1, 64) + passage(2, 400))
    engine.settle()
    request = engine.serve(prompt)
    assert request.promised == 0
    engine.same_as_cold(request)
    found = stats(engine)
    assert found.plans == 1, "nothing was found, so the test proves nothing"
    assert found.declines[DeclineReason.EXACT_ONLY] == 1
    assert found.confirmed_tokens == 0


def test_a_span_at_the_same_place_behind_other_tokens_is_not_exact(make_engine: Make) -> None:
    """A changed instruction of the same length: the span needs no rotation, and its KV is approximate all the same."""
    engine = make_engine()
    engine.serve(passage(1, 64) + passage(2, 400))
    engine.settle()
    engine.serve(passage(5, 64), max_new=1)
    request = engine.serve(passage(5, 64) + passage(2, 400))
    assert request.promised == 0
    engine.same_as_cold(request)
    assert stats(engine).declines[DeclineReason.EXACT_ONLY] == 1


def test_discovery_only_finds_and_loads_nothing(make_engine: Make) -> None:
    engine = make_engine(discovery_only=1)
    engine.serve(passage(2, 400))
    engine.settle()
    engine.forget_cache()
    assert engine.serve(passage(2, 400) + passage(3, 40)).promised == 0
    assert stats(engine).plans == 1


def test_a_part_of_a_block_is_declined_and_counted(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    engine.serve(passage(2, 400))
    engine.settle()
    engine.forget_cache()
    ask = engine.manager.get_num_new_matched_tokens
    monkeypatch.setattr(engine.manager, "get_num_new_matched_tokens", lambda request, found: ask(request, found + 5))
    assert engine.serve(passage(2, 400) + passage(3, 40)).promised == 0
    assert stats(engine).declines[DeclineReason.STRICT_PREFIX_BOUNDARY] == 1


def test_other_salts_and_adapters_share_nothing(make_engine: Make) -> None:
    engine = make_engine(sharing="salted")
    prompt = passage(2, 400)
    engine.serve(prompt, salt="tenant-a")
    engine.serve(passage(3, 400))
    engine.settle()
    engine.forget_cache()
    for more in ({"salt": "tenant-b"}, {"salt": None}, {"salt": "tenant-a", "lora": 3}):
        assert engine.serve(prompt + passage(5, 40), **more).promised == 0
    assert engine.serve(prompt + passage(5, 40), salt="tenant-a").promised == 384
    assert engine.serve(passage(3, 400) + passage(5, 40)).promised == 0
    assert stats(engine).declines[DeclineReason.NO_SALT] >= 1


def test_long_prefixes_are_cut_to_the_staging_budget(make_engine: Make) -> None:
    engine = make_engine(trtllm_staging_bytes=150 * 2 * 2 * 2 * 16 * 4)
    engine.serve(passage(2, 400))
    engine.settle()
    engine.forget_cache()
    request = engine.serve(passage(2, 400) + passage(3, 40))
    assert request.promised == 128
    engine.same_as_cold(request)


def test_several_requests_of_one_step_are_loaded_together(make_engine: Make) -> None:
    engine = make_engine()
    for seed in (2, 3):
        engine.serve(passage(seed, 400))
    engine.settle()
    engine.forget_cache()
    requests = [engine.add(passage(seed, 400) + passage(9, 20)) for seed in (2, 3, 4)]
    while not all(request.is_over for request in requests):
        engine.step()
    assert [request.promised for request in requests] == [384, 384, 0]
    for request in requests:
        engine.same_as_cold(request)


def test_requests_with_more_than_tokens_are_left_alone(make_engine: Make) -> None:
    engine = make_engine()
    engine.serve(passage(2, 400))
    engine.settle()
    engine.forget_cache()
    request = engine.serve(passage(2, 400) + passage(3, 40), return_context_logits=True)
    assert request.promised == 0
    assert stats(engine).declines[DeclineReason.UNSUPPORTED_REQUEST] == 1


def test_wrong_kv_would_show(make_engine: Make) -> None:
    """The control: one page of another token changes the answer's logits by far more than the tests allow."""
    engine = make_engine()
    request = engine.add(passage(2, 400))
    engine.step()
    engine.pool[request.blocks[3]] = engine.pool[request.blocks[4]]
    engine.step()
    cold, _ = engine.cold(request.tokens[:401])
    assert (request.logits[1] - cold[0]).abs().max() > 1e-2
