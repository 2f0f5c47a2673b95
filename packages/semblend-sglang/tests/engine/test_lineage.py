"""Who goes on from what was served approximately finds it in place; nobody else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import releases
from toy_model import exact_numbers

from semblend_core import OutcomeKind
from semblend_core.testing import passage
from semblend_sglang.scheduler.continuing import MOST_WAITS_FOR_SAME
from semblend_sglang.scheduler.requests import TreeKey

DOCUMENT = passage(2, 600)
OPENING = [*passage(3, 80), *DOCUMENT]
LAYOUTS = [
    pytest.param({"page_size": page, "core": core, "latent": latent}, id=f"page-{page}-{core}{'-latent' * latent}")
    for page, core, latent in ((1, "python", False), (1, "rust", True), (16, "rust", False), (16, "python", True))
]


@pytest.fixture(params=LAYOUTS)
def rig(request: pytest.FixtureRequest, new_rig: Callable[..., Any]) -> Any:
    rig = new_rig(**request.param, slots=16384, lookup_budget_ms=600_000.0)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    return rig


def check(rig: Any, request: Any) -> None:
    slots = rig.slots_of(request)
    known = list(request.origin_input_ids + request.output_ids)
    assert len(set(slots)) == len(slots)
    assert rig.tokens_at(slots) == known[: len(slots)]
    assert rig.key_error(slots, list(range(len(slots)))) < 1e-4
    settled(rig)


def settled(rig: Any) -> None:
    rig.check_accounts()
    rig.check_lineages()


def computed(request: Any) -> int:
    return len(request.origin_input_ids) - int(request.cached_tokens)


def asked(rig: Any, prompt: list[int], name: str, **options: Any) -> Any:
    request = rig.submit(prompt, name, **options)
    while request not in rig.running:
        rig.step()
    check(rig, request)
    rig.finish(request)
    settled(rig)
    return request


def test_ten_turns_compute_hardly_more_than_without_us(rig: Any) -> None:
    turns = {}
    for wish, salt in (("on", None), ("off", "cold")):
        prompt = [*OPENING, *passage(5, 40)]
        turns[wish] = []
        for turn in range(10):
            turns[wish].append(computed(asked(rig, prompt, f"{wish}-{turn}", wish=wish, salt=salt)))
            prompt = [*prompt, *passage(100 + turn, 90), *passage(200 + turn, 30)]
    assert turns["on"][0] < 200 < turns["off"][0]
    more = [ours - stock for ours, stock in zip(turns["on"][1:], turns["off"][1:], strict=True)]
    assert max(more) <= 0, more
    stats = rig.side.provider.stats()
    assert stats.outcomes[OutcomeKind.MATERIALIZED] == 10


def test_what_is_generated_is_found_too(rig: Any) -> None:
    prompt = [*OPENING, *passage(5, 40)]
    first = rig.submit(prompt, "first")
    rig.step()
    rig.finish(first)
    again = asked(rig, [*prompt, *first.output_ids, *passage(6, 30)], "again")
    assert computed(again) <= 30 + len(first.output_ids) + rig.page_size


def test_it_is_counted_as_reuse_of_which_no_byte_moved(rig: Any) -> None:
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    before = rig.side.provider.stats()
    moved, rig.side.pool.move_slots = rig.side.pool.move_slots, None
    again = asked(rig, [*OPENING, *passage(6, 40)], "again")
    rig.side.pool.move_slots = moved
    after = rig.side.provider.stats()
    opening = len(rig.exact_match(OPENING, TreeKey(None)))
    assert after.confirmed_tokens - before.confirmed_tokens == again.cached_tokens - opening
    assert after.outcomes[OutcomeKind.MATERIALIZED] == before.outcomes[OutcomeKind.MATERIALIZED] + 1


def test_it_is_used_where_it_lies(rig: Any) -> None:
    first = rig.submit([*OPENING, *passage(5, 40)], "first")
    rig.step()
    second = rig.submit([*OPENING, *passage(6, 40)], "second")
    rig.step()
    shared = second.cached_tokens
    assert rig.slots_of(first)[:shared] == rig.slots_of(second)[:shared]
    rig.finish(first)
    check(rig, second)
    rig.evict(rig.slots)
    check(rig, second)
    rig.finish(second)
    settled(rig)


@pytest.mark.parametrize(
    "other",
    [{"salt": "b"}, {"adapter": "lora"}, {"wish": "off"}, {"wish": "discovery"}],
    ids=["salt", "adapter", "off", "discovery"],
)
def test_nobody_else_finds_it(rig: Any, other: dict[str, Any]) -> None:
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    request = rig.submit([*OPENING, *passage(6, 40)], "other", **other)
    rig.step()
    assert request.cached_tokens <= len(OPENING) - len(DOCUMENT)
    slots = rig.slots_of(request)
    assert rig.numbers_at(slots) == exact_numbers(list(request.origin_input_ids)[: len(slots)])
    rig.finish(request)
    settled(rig)


@pytest.mark.parametrize("change", ["flush", "update"])
def test_new_weights_find_nothing_of_the_old(rig: Any, change: str) -> None:
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    if change == "flush":
        rig.tree.reset()
        rig.allocator.clear()
    else:
        rig.update_weights()
    assert len(rig.side.lineages.book) == 0
    settled(rig)
    request = asked(rig, [*OPENING, *passage(6, 40)], "again")
    assert request.cached_tokens <= len(OPENING) - len(DOCUMENT)


def test_what_runs_while_the_weights_change_is_found_by_nobody(rig: Any) -> None:
    running = rig.submit([*OPENING, *passage(5, 40)], "running")
    rig.step()
    rig.update_weights()
    rig.finish(running)
    settled(rig)
    request = asked(rig, [*OPENING, *passage(6, 40)], "again")
    assert request.cached_tokens <= len(OPENING) - len(DOCUMENT)


def test_whoever_waits_while_the_weights_change_counts_on_nothing_old(rig: Any) -> None:
    """However many they are: SGLang asks about all of them to put them in order, and not all are looked up again."""
    running = rig.submit([*OPENING, *passage(5, 40)], "running")
    rig.step()
    waiting = [rig.submit([*OPENING, *passage(20 + number, 40)], f"waiting-{number}") for number in range(12)]
    for request in waiting:
        request.init_next_round_input(rig.tree)
        assert rig.side.requests.of_request(request).in_place is not None
    rig.update_weights()
    for request in waiting:
        request.init_next_round_input(rig.tree)
        assert rig.side.requests.of_request(request).in_place is None
    for request in waiting:
        rig.abort(request)
    rig.finish(running)
    settled(rig)


def test_a_failed_self_test_hides_it(rig: Any) -> None:
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    rig.side.self_test.refuse("for a test")
    request = asked(rig, [*OPENING, *passage(6, 40)], "again")
    assert request.cached_tokens <= len(OPENING) - len(DOCUMENT)


def test_exact_kv_wins_and_what_lies_beyond_is_taken(rig: Any) -> None:
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    asked(rig, [*OPENING[:400], *passage(7, 20)], "exact", wish="off")
    exact = len(rig.exact_match(OPENING, TreeKey(None)))
    request = rig.submit([*OPENING, *passage(6, 40)], "again")
    rig.step()
    check(rig, request)
    slots = rig.slots_of(request)
    assert exact >= 400 - rig.page_size
    assert rig.numbers_at(slots[:exact]) == exact_numbers(OPENING[:exact])
    assert computed(request) <= 40 + rig.page_size
    rig.finish(request)
    settled(rig)


def test_once_it_has_aged_it_is_evicted_before_what_is_exact(rig: Any) -> None:
    exact = passage(9, 320)
    rig.serve(exact, "older")
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    rig.side.lineages.shadow.turnover += rig.slots // 4
    rig.evict(200)
    settled(rig)
    assert len(rig.exact_match(exact, TreeKey(None))) == 320
    assert rig.side.lineages.shadow.evictable_tokens < 600


def test_in_a_full_pool_a_conversation_goes_on(rig: Any) -> None:
    for filler in range(30):
        rig.serve(passage(300 + filler, 800), f"filler-{filler}", wish="off")
    assert rig.allocator.available_size() < 2000
    rig.serve([*passage(1, 64), *DOCUMENT], "donor again", wish={"mode": "discovery", "capture": True})
    prompt = [*OPENING, *passage(5, 40)]
    for turn in range(4):
        request = asked(rig, prompt, f"turn-{turn}")
        assert not turn or computed(request) <= 91 + rig.page_size
        prompt = [*prompt, *passage(60 + turn, 90)]
        rig.serve(passage(400 + turn, 800), f"meanwhile-{turn}", wish="off")


def test_all_of_it_goes_where_nothing_else_is_left(rig: Any) -> None:
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    rig.evict(rig.slots)
    assert rig.side.lineages.shadow.evictable_tokens == 0
    assert len(rig.side.lineages.book) == 0, "a name without KV is forgotten"
    assert rig.allocator.available_size() == rig.slots
    settled(rig)


def test_what_was_evicted_between_turns_is_loaded_again(rig: Any) -> None:
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    rig.side.lineages.shadow.evict(rig.slots)
    request = asked(rig, [*OPENING, *passage(6, 40)], "again")
    assert request.cached_tokens > 500, "the donor is still there"


def test_what_goes_between_question_and_admission_is_not_counted_on(rig: Any) -> None:
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    request = rig.submit([*OPENING, *passage(6, 40)], "again")
    request.init_next_round_input(rig.tree)
    assert rig.side.promised(request).in_place is not None
    rig.evict(rig.slots)
    rig.step()
    check(rig, request)
    rig.finish(request)
    settled(rig)


def test_further_spans_behind_it_grow_a_lineage_of_its_own(rig: Any) -> None:
    other = passage(8, 400)
    rig.serve([*passage(10, 64), *other], "another donor")
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    prompt = [*OPENING, *passage(5, 40), *passage(11, 30), *other, *passage(12, 20)]
    second = asked(rig, prompt, "second")
    assert computed(second) < 200
    third = asked(rig, [*prompt, *passage(13, 25)], "third")
    assert computed(third) <= 25 + 1 + rig.page_size
    lineages = {node.lineage for node in rig.side.lineages.shadow.nodes()}
    assert {lineage.parent is None for lineage in lineages} == {True, False}
    # Who has another question after the document finds the first lineage, and not what grew from it.
    assert computed(asked(rig, [*OPENING, *passage(14, 40)], "fourth")) <= 40 + rig.page_size


def test_eight_equal_prompts_at_once_hold_one_copy_and_eight_tails(rig: Any) -> None:
    before = rig.allocator.available_size()
    together = [rig.submit([*OPENING, *passage(50 + n, 40)], f"same-{n}") for n in range(8)]
    for _ in range(3):
        rig.step()
    assert set(together) <= set(rig.running)
    for request in together:
        check(rig, request)
    used = before - rig.allocator.available_size()
    assert used <= len(OPENING) + 8 * (40 + rig.page_size) + rig.page_size
    assert sorted(map(computed, together))[-2] <= 40 + rig.page_size, "one has loaded, seven took it"
    for request in together:
        rig.finish(request)
    settled(rig)


def test_who_is_waited_for_in_vain_is_not_waited_for_longer(rig: Any) -> None:
    """The first never gets so far as to leave anything."""
    kept, rig.side.lineages.keep = rig.side.lineages.keep, lambda life, tokens, row, owned: owned
    first, second = (rig.submit([*OPENING, *passage(50 + n, 40)], f"same-{n}") for n in range(2))
    rounds = 0
    while second not in rig.running:
        rig.step()
        rounds += 1
    assert rounds == MOST_WAITS_FOR_SAME + 1
    for request in (first, second):
        check(rig, request)
        rig.finish(request)
    rig.side.lineages.keep = kept
    settled(rig)


def test_a_failed_load_leaves_nothing_to_be_found(rig: Any) -> None:
    def fails(*arguments: Any) -> None:
        del rig.side.pool.move_slots
        raise RuntimeError("a fault that the test asked for")

    rig.side.pool.move_slots = fails
    failed = asked(rig, [*OPENING, *passage(5, 40)], "failed", wish={"capture": False})
    assert failed.cached_tokens == 0
    assert len(rig.side.lineages.book) == 0
    assert not list(rig.side.lineages.shadow.nodes())


@pytest.mark.parametrize(("how", "when"), [("abort", "waiting"), ("abort", "running"), ("retract", "running")])
def test_who_leaves_early_gives_back_what_is_its_own(rig: Any, how: str, when: str) -> None:
    asked(rig, [*OPENING, *passage(5, 40)], "first")
    request = rig.submit([*OPENING, *passage(6, 40)], "leaves")
    if when == "running":
        rig.step()
    else:
        request.init_next_round_input(rig.tree)
    getattr(rig, how)(request)
    settled(rig)
    assert rig.side.lineages.shadow.held_tokens == 0
    if how == "retract":
        rig.step()
        check(rig, request)
        assert releases.prefix_len(request) >= len(request.origin_input_ids) - rig.page_size, (
            "it goes on from what it had"
        )
        rig.finish(request)
        settled(rig)


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_prompt_in_pieces_grows_and_goes_on(new_rig: Callable[..., Any], page_size: int) -> None:
    rig = new_rig(page_size=page_size, chunk=128, slots=16384, lookup_budget_ms=600_000.0)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    prompt = [*OPENING, *passage(5, 300)]
    for turn in range(3):
        request = asked(rig, prompt, f"turn-{turn}")
        if turn:
            assert computed(request) <= 301 + page_size
        prompt = [*prompt, *passage(60 + turn, 300)]
    aborted = rig.submit(prompt, "aborted in pieces")
    rig.step()
    assert rig.chunked is aborted
    rig.abort(aborted)
    settled(rig)
    assert rig.side.lineages.shadow.held_tokens == 0


def test_no_event_tells_of_it(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(slots=16384, lookup_budget_ms=600_000.0, events=True)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    rig.tree.take_events()
    request = rig.serve([*OPENING, *passage(5, 40)], "first")
    opening = len(rig.exact_match(list(request.origin_input_ids), TreeKey(None)))
    told = [token for event in rig.tree.take_events() for token in getattr(event, "token_ids", ())]
    assert told == OPENING[:opening]
    rig.side.lineages.shadow.evict(rig.slots)
    assert not rig.tree.take_events()


def test_beside_a_hierarchical_cache_nothing_of_it_leaves_the_device(new_tiered_rig: Callable[..., Any]) -> None:
    rig = new_tiered_rig(slots=16384, lookup_budget_ms=600_000.0)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    prompt = [*OPENING, *passage(5, 40)]
    rig.serve(prompt, "first")
    rig.settle()
    again = rig.serve([*prompt, *passage(6, 40)], "again")
    assert computed(again) <= 40 + 1
    rig.settle()
    rig.evict(rig.slots)
    settled(rig)
    probe = rig.submit(prompt, "probe", wish="off")
    while probe not in rig.running:
        rig.step()
    slots = rig.slots_of(probe)
    assert rig.numbers_at(slots) == exact_numbers(prompt[: len(slots)])
