"""Single requests through admission, forward and release, on the real tree, pools and allocator."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import releases
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from toy_model import exact_numbers

from semblend_core import DeclineReason, OutcomeKind
from semblend_core.kv import StoreOptions
from semblend_core.serving import RoundTime
from semblend_core.serving.tree import KeptDonors
from semblend_core.testing import passage
from semblend_sglang.scheduler.requests import TreeKey

DOCUMENT = passage(2, 400)
LAYOUTS = [
    pytest.param({"page_size": page, "core": core, "latent": latent}, id=f"page-{page}-{core}{'-latent' * latent}")
    for page, core, latent in ((1, "python", False), (1, "rust", True), (16, "rust", False), (16, "python", True))
]


@pytest.fixture(params=LAYOUTS)
def rig(request: pytest.FixtureRequest, new_rig: Callable[..., Any]) -> Any:
    return new_rig(**request.param, lookup_budget_ms=600_000.0)


def check(rig: Any, request: Any) -> None:
    """Every slot of a running request holds its own token's KV, turned to its own place."""
    slots = rig.slots_of(request)
    assert len(set(slots)) == len(slots)
    assert rig.tokens_at(slots) == list(request.origin_input_ids)[: len(slots)]
    assert rig.key_error(slots, list(range(len(slots)))) < 1e-5
    rig.check_accounts()


def confirmed(rig: Any) -> int:
    return int(rig.side.provider.stats().confirmed_tokens)


def declines(rig: Any) -> dict[DeclineReason, int]:
    return dict(rig.side.provider.stats().declines)


def test_a_span_behind_an_exact_prefix(rig: Any) -> None:
    head = passage(1, 96)
    rig.serve([*head, *passage(3, 20)], "head")
    rig.serve([*passage(4, 50), *DOCUMENT], "document")
    request = rig.submit([*head, *DOCUMENT, *passage(5, 30)], "asked")
    rig.step()
    check(rig, request)
    assert request.cached_tokens == 96 + confirmed(rig)
    assert confirmed(rig) > 350
    rig.finish(request)
    rig.check_accounts()


def test_a_prompt_becomes_a_donor_when_its_first_token_is_out(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[int] = []
    computed = rig._computed

    def then_sent(request: Any) -> None:
        computed(request)
        known.append(len(rig.side.donors))

    monkeypatch.setattr(rig, "_computed", then_sent)
    rig.serve(passage(41, 300), "donor")
    assert set(known) == {0}
    assert len(rig.side.donors) == 1


def test_several_gaps_and_spans_from_several_donors(rig: Any) -> None:
    parts = [passage(seed, 150) for seed in range(10, 14)]
    for number, part in enumerate(parts):
        rig.serve([*passage(20 + number, 40 + number), *part], f"donor-{number}")
    prompt = [token for n in (2, 0, 3, 1) for token in (*passage(30 + n, 9), *parts[n])] + passage(40, 30)
    request = rig.submit(prompt, "asked")
    rig.step()
    check(rig, request)
    assert request.cached_tokens == confirmed(rig) > 500
    rig.finish(request)
    rig.check_accounts()


def test_three_requests_with_rows_in_one_batch(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    asked = [rig.submit([*passage(50 + n, 30 + n), *DOCUMENT, *passage(60 + n, 20)], f"asked-{n}") for n in range(3)]
    rig.submit(passage(70, 100), "cold one between")
    rig.step()
    assert rig.side.provider.stats().outcomes[OutcomeKind.MATERIALIZED] == 3
    for request in asked:
        check(rig, request)
    for request in list(rig.running):
        rig.finish(request)
    rig.check_accounts()


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_long_tail_is_computed_in_pieces(new_rig: Callable[..., Any], page_size: int) -> None:
    rig = new_rig(page_size=page_size, chunk=128, lookup_budget_ms=600_000.0)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    request = rig.submit([*passage(3, 40), *DOCUMENT, *passage(4, 300)], "asked")
    rig.step()
    assert rig.chunked is request
    rig.check_accounts()
    while request not in rig.running:
        rig.step()
    check(rig, request)
    assert request.cached_tokens == confirmed(rig) > 300
    rig.finish(request)
    rig.check_accounts()


def test_rows_that_can_never_fit_shorten_the_plan(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(chunk=64, lookup_budget_ms=600_000.0)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    prompt = [*DOCUMENT[:200], *passage(3, 100), *DOCUMENT[200:], *passage(4, 10)]
    request = rig.serve([*passage(5, 30), *prompt], "asked")
    assert 100 < request.cached_tokens < 200
    rig.check_accounts()


def test_the_exact_opening_enters_the_tree_and_nothing_approximate(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    prompt = [*passage(3, 80), *DOCUMENT, *passage(4, 40)]
    request = rig.submit(prompt, "asked")
    rig.step()
    opening = 80
    releases.keep(request, rig.tree, in_pieces=False)  # However often SGLang asks for it.
    for _ in range(2):
        slots = rig.exact_match(prompt, TreeKey(None))
        assert len(slots) == opening
        assert rig.numbers_at(slots) == exact_numbers(prompt[:opening])
        rig.check_accounts()
        if request in rig.running:
            rig.finish(request)
    assert len(rig.side.donors) == 1


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_an_abort_gives_everything_back(rig: Any, when: str) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    request = rig.submit([*passage(3, 80), *DOCUMENT, *passage(4, 40)], "asked")
    if when == "waiting":
        request.init_next_round_input(rig.tree)
    else:
        rig.step()
    rig.abort(request)
    rig.check_accounts()
    assert len(rig.side.requests) == 0
    assert rig.side.provider.stats().pinned_requests == 0
    assert declines(rig).get(DeclineReason.ABORTED, 0) == (when == "waiting")


def test_a_retracted_request_goes_on_from_its_lineage(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    prompt = [*passage(3, 80), *DOCUMENT, *passage(4, 40)]
    request = rig.submit(prompt, "asked")
    rig.step()
    request.output_ids.extend(passage(5, 50))
    rig.retract(request)
    rig.check_accounts()
    rig.step()
    assert releases.prefix_len(request) >= len(prompt) - rig.page_size, "what it had is computed again"
    slots = rig.slots_of(request)
    known = [*prompt, *request.output_ids][: len(slots)]
    assert rig.tokens_at(slots) == known
    assert rig.key_error(slots, list(range(len(slots)))) < 1e-5
    rig.finish(request)
    assert len(rig.exact_match(prompt, TreeKey(None))) <= 80, "the exact tree holds approximate KV"
    rig.check_accounts()
    assert len(rig.side.requests) == 0


def test_a_retracted_request_whose_lineage_is_gone_is_computed_exactly_and_may_then_be_cached(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    prompt = [*passage(3, 80), *DOCUMENT, *passage(4, 40)]
    request = rig.submit(prompt, "asked")
    rig.step()
    rig.retract(request)
    rig.side.lineages.shadow.evict(rig.slots)
    assert not request.skip_radix_cache_insert
    rig.check_accounts()
    rig.step()
    rig.finish(request)
    slots = rig.exact_match(prompt, TreeKey(None))
    assert rig.numbers_at(slots) == exact_numbers(prompt[: len(slots)])
    assert len(slots) > len(prompt) - rig.page_size
    rig.check_accounts()


def test_a_donor_that_is_used_may_be_evicted_at_once(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    request = rig.submit([*passage(3, 80), *DOCUMENT, *passage(4, 40)], "asked")
    rig.step()
    rig.evict(rig.slots)
    assert rig.exact_match([*passage(1, 64), *DOCUMENT], TreeKey(None)) == []
    check(rig, request)
    rig.finish(request)
    again = rig.serve([*passage(6, 80), *DOCUMENT, *passage(7, 40)], "again")
    assert again.cached_tokens == 0
    assert len(rig.side.donors) == 1, "the donor that is gone is forgotten, the new one known"


def test_the_gate_hears_of_donors_that_are_gone(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []
    monkeypatch.setattr(rig.side.costs, "donors_gone", gone.append)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    rig.serve([*passage(3, 80), *DOCUMENT, *passage(4, 40)], "reuses")
    assert gone == []
    rig.evict(rig.slots)
    rig.serve([*passage(6, 80), *DOCUMENT, *passage(7, 40)], "computes")
    assert gone == ["computes"]


def test_a_full_pool_evicts_for_reuse_as_it_does_for_prefill(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(slots=1024, lookup_budget_ms=600_000.0)
    rig.serve(passage(9, 450), "old")
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    request = rig.submit([*passage(3, 40), *DOCUMENT, *passage(4, 20)], "asked")
    rig.step()
    check(rig, request)
    assert confirmed(rig) > 350
    rig.finish(request)
    rig.check_accounts()


def test_other_keys_are_other_tenants(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor", salt="a")
    prompt = [*passage(3, 80), *DOCUMENT, *passage(4, 40)]
    for number, key in enumerate(({"salt": "b"}, {}, {"adapter": "lora"}, {"salt": "a", "adapter": "lora"})):
        assert rig.serve(prompt, f"other-{number}", wish={"capture": False}, **key).cached_tokens == 0
    assert rig.serve(prompt, "same", salt="a").cached_tokens > 350


def test_requests_of_one_adapter_share(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor", adapter="lora")
    request = rig.submit([*passage(3, 80), *DOCUMENT, *passage(4, 40)], "asked", adapter="lora")
    rig.step()
    check(rig, request)
    assert confirmed(rig) > 350


def test_a_match_without_a_request_is_sglangs_own(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    before = rig.side.provider.stats().lookups
    key = rig.tree._key(array("q", [*passage(3, 80), *DOCUMENT]), TreeKey(None))
    found = rig.tree.match_prefix(MatchPrefixParams(key=key))
    assert (releases.found_len(found), found.host_hit_length) == (0, 0)
    assert rig.side.provider.stats().lookups == before


def test_a_waiting_request_is_looked_up_once(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    request = rig.submit([*passage(3, 80), *DOCUMENT, *passage(4, 40)], "asked")
    before = rig.side.provider.stats().lookups
    for _ in range(10):
        request.init_next_round_input(rig.tree)
    assert rig.side.provider.stats().lookups == before + 1


def test_a_new_donor_is_found_by_those_who_wait_in_front(rig: Any) -> None:
    rig.serve(passage(9, 200), "some donor")
    waiting = [rig.submit([*passage(50 + n, 30), *DOCUMENT, *passage(90 + n, 20)], f"w{n}") for n in range(20)]
    for request in waiting:
        request.init_next_round_input(rig.tree)
    rig.waiting.clear()
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    before = rig.side.provider.stats().lookups
    for request in waiting:
        request.init_next_round_input(rig.tree)
    assert [rig.side.claimed(request) is not None for request in waiting] == [True] * 8 + [False] * 12
    assert rig.side.provider.stats().lookups == before + 8
    rig.waiting.append(waiting[0])
    rig.step()
    for request in waiting[1:]:
        request.init_next_round_input(rig.tree)
    assert [rig.side.claimed(request) is not None for request in waiting[7:10]] == [True, True, False]


def test_a_round_has_time_for_a_few_first_lookups_and_nobody_overtakes_who_waits_for_one(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    # Each takes all the time that it may.
    rig.side.round = RoundTime(1.0, clock=lambda: float(rig.side.provider.stats().lookups))
    before = rig.side.provider.stats().lookups
    asked = [rig.submit([*passage(50 + n, 30), *DOCUMENT[:200], *passage(90 + n, 20)], f"asked-{n}") for n in range(10)]
    rounds = [[request.rid for request in rig.step()] for _ in range(3)]
    assert rounds == [[f"asked-{n}" for n in part] for part in (range(4), range(4, 8), range(8, 10))]
    assert rig.side.provider.stats().lookups == before + 10
    assert rig.side.provider.stats().outcomes[OutcomeKind.MATERIALIZED] == 10
    for request in asked:
        check(rig, request)


def test_who_wants_no_reuse_waits_for_no_lookup(rig: Any) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    rig.side.round = RoundTime(0.0)
    first = rig.submit([*passage(3, 30), *DOCUMENT], "first")
    plain = rig.submit(passage(5, 60), "plain", wish="off")
    second = rig.submit([*passage(7, 30), *DOCUMENT], "second")
    assert rig.step() == [first, plain]
    assert rig.step() == [second]


@pytest.mark.parametrize("wish", ["off", "discovery"])
def test_a_request_may_decline_reuse(rig: Any, wish: str) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    before = rig.side.provider.stats().lookups
    request = rig.serve([*passage(3, 80), *DOCUMENT, *passage(4, 40)], "asked", wish=wish)
    assert request.cached_tokens == 0
    assert rig.side.provider.stats().lookups - before == (wish == "discovery")
    assert rig.side.provider.stats().outcomes.get(OutcomeKind.DISCOVERY_ONLY, 0) == (wish == "discovery")


def test_kept_donors_are_used_after_the_tree_has_evicted_them(new_rig: Callable[..., Any], tmp_path: Path) -> None:
    kept = KeptDonors(StoreOptions(host_bytes=64 * 2**20))
    rig = new_rig(kept=kept, lookup_budget_ms=600_000.0)
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    kept.flush()
    rig.evict(rig.slots)
    request = rig.submit([*passage(3, 80), *DOCUMENT, *passage(4, 40)], "asked")
    rig.step()
    check(rig, request)
    assert confirmed(rig) > 350
    rig.finish(request)
    rig.check_accounts()
    rig.side.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_until_the_self_test_has_passed_nothing_is_loaded(new_rig: Callable[..., Any], layout: Any) -> None:
    rig = new_rig(**layout, lookup_budget_ms=600_000.0, proved=False)
    unproved = [*passage(1, 64), *DOCUMENT]  # Hardly a token twice: it proves nothing.
    rig.serve(unproved, "donor")
    assert rig.serve([*passage(3, 80), *DOCUMENT], "asked").cached_tokens == 0
    words = passage(8, 40)
    rig.serve([words[n * 7 % 40] for n in range(300)], "repeats its words")
    assert rig.side.self_test.passed
    assert rig.serve([*passage(5, 80), *DOCUMENT], "asked again").cached_tokens > 300


@pytest.mark.parametrize("first", ["rows", "states"])
def test_rows_share_no_batch_with_what_is_found_by_counting_tokens(rig: Any, first: str) -> None:
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    wanted = {
        "rows": ([*passage(50, 30), *DOCUMENT, *passage(60, 20)], {}),
        "states": (passage(70, 100), {"return_hidden_states": True}),
    }
    asked = {}
    for name in (first, *(other for other in wanted if other != first)):
        prompt, options = wanted[name]
        asked[name] = rig.submit(prompt, name)
        for option, value in options.items():
            setattr(asked[name], option, value)
    together = [{request.rid for request in rig.step()} for _ in range(2)]
    assert {"rows", "states"} not in together
    assert set.union(*together) >= {"rows", "states"}
    assert rig.side.provider.stats().outcomes[OutcomeKind.MATERIALIZED] == 1
    check(rig, asked["rows"])


@pytest.mark.parametrize("option", ["return_routed_experts", "return_indexer_topk"])
def test_what_sglang_keeps_by_slot_is_read_from_slots_that_a_forward_wrote(rig: Any, option: str) -> None:
    written: dict[int, int] = {}
    compute = rig._compute

    def and_note(batch: Any) -> None:
        written.update(zip(batch.out_cache_loc.tolist(), batch.input_ids.tolist(), strict=True))
        compute(batch)

    rig._compute = and_note
    rig.serve([*passage(1, 64), *DOCUMENT], "donor")
    rig.serve(prompt := [*passage(3, 80), *DOCUMENT, *passage(4, 40)], "first")  # Others may go on from it in place.
    for name, asked in (("moved", [*passage(5, 80), *DOCUMENT]), ("in place", [*prompt, *passage(6, 20)])):
        request = rig.submit(asked, name)
        setattr(request, option, True)
        rig.step()
        assert [written[slot] for slot in rig.slots_of(request)] == asked
        assert declines(rig)[DeclineReason.UNSUPPORTED_REQUEST] >= 1
        rig.finish(request)
    rig.check_accounts()


def in_parts(rig: Any) -> list[int]:
    """A prompt of six passages in another order than a donor has them: as many rows."""
    parts = [passage(seed, 300) for seed in range(10, 16)]
    rig.serve([token for part in parts for token in part], "donor")
    return [token for at in (3, 0, 5, 1, 4, 2) for token in (*passage(30 + at, 9), *parts[at])] + passage(40, 30)


@pytest.mark.parametrize("decoding", [0, 6, 12])
def test_who_decodes_takes_no_room_from_rows(new_rig: Callable[..., Any], decoding: int) -> None:
    rig = new_rig(slots=16384, most_sequences=16, lookup_budget_ms=600_000.0)
    prompt = in_parts(rig)
    for number in range(decoding):
        rig.submit(passage(500 + number, 20), f"decoding-{number}", wish="off")
    rig.step()
    request = rig.submit(prompt, "asked")
    rig.step()
    check(rig, request)
    assert request.cached_tokens > 1600


def test_a_claim_is_cut_to_the_room_of_its_batch(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(slots=16384, most_sequences=8, lookup_budget_ms=600_000.0)
    prompt = in_parts(rig)
    others = [rig.submit(passage(500 + number, 20), f"other-{number}", wish="off") for number in range(3)]
    request = rig.submit(prompt, "asked")
    assert set(rig.step()) == {*others, request}, "it need not wait for a batch of its own"
    check(rig, request)
    assert 800 < request.cached_tokens < 1600


def test_where_most_would_be_lost_it_waits_a_round_and_nobody_overtakes_it(new_rig: Callable[..., Any]) -> None:
    rig = new_rig(slots=16384, most_sequences=8, lookup_budget_ms=600_000.0)
    prompt = in_parts(rig)
    others = [rig.submit(passage(500 + number, 20), f"other-{number}", wish="off") for number in range(6)]
    request, behind = rig.submit(prompt, "asked"), rig.submit(passage(600, 20), "behind", wish="off")
    assert set(rig.step()) == set(others)
    assert set(rig.step()) == {request, behind}
    check(rig, request)
    assert request.cached_tokens > 1600
