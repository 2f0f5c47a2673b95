"""Beside SGLang's hierarchical cache: what is exact wins wherever it lies; nothing approximate leaves the device."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_model import exact_numbers

from semblend_core import DeclineReason
from semblend_core.testing import passage
from semblend_sglang.scheduler.requests import TreeKey

HEAD, DOCUMENT, TAIL = passage(1, 64), passage(2, 400), passage(3, 30)
EXACT = [*HEAD, *DOCUMENT]
OPENING = passage(4, 48)
"""Computed exactly by whoever reuses the document behind it, and so the only part that may leave the device."""
MOVED = [*OPENING, *DOCUMENT, *TAIL]
LAYOUTS = [
    pytest.param({"page_size": 1, "core": "python"}, id="page-1-python"),
    pytest.param({"page_size": 16, "core": "rust", "latent": True}, id="page-16-rust-latent"),
]
POLICIES = ["write_through", "write_through_selective", "write_back"]


@pytest.fixture(params=LAYOUTS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param, lookup_budget_ms=600_000.0)


@pytest.fixture
def make(new_tiered_rig: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    return functools.partial(new_tiered_rig, **options)


def confirmed(rig: Any) -> int:
    return int(rig.side.provider.stats().confirmed_tokens)


def check(rig: Any, request: Any, *, exact: bool) -> None:
    slots = rig.slots_of(request)
    prompt = list(request.origin_input_ids)[: len(slots)]
    assert rig.tokens_at(slots[: len(prompt)]) == prompt
    assert rig.key_error(slots[: len(prompt)], list(range(len(prompt)))) < 1e-5
    assert (rig.numbers_at(slots[: len(prompt)]) == exact_numbers(prompt)) == exact
    assert rig.is_approximate(request) is not exact
    rig.check_accounts()


def finish(rig: Any, request: Any) -> None:
    rig.finish(request)
    rig.settle()
    rig.check_accounts()


def pushed_to_host(rig: Any, prompt: list[int], rid: str) -> None:
    """``prompt`` is served, and then lies in host memory alone."""
    rig.serve(prompt, rid, wish="off")
    rig.settle()
    rig.evict(rig.slots)
    assert rig.exact_match(prompt, TreeKey(None)) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_reuse_goes_on_and_nothing_of_it_is_ever_copied_to_host_memory(make: Callable[..., Any], policy: str) -> None:
    rig = make(write_policy=policy)
    rig.serve(EXACT, "donor")
    for number in range(3):  # The second and third would be worth a copy to a selective cache.
        request = rig.submit(MOVED, f"asked-{number}")
        rig.step()
        check(rig, request, exact=False)
        finish(rig, request)
    assert confirmed(rig) > 3 * 350
    rig.evict(rig.slots)  # To host memory, where the policy has not copied already.
    probe = rig.submit(MOVED, "probe", wish="off")
    rig.step()
    copied = 0 if policy == "write_through_selective" else len(OPENING)  # It was inserted once.
    assert probe.cached_tokens == probe.host_loaded_length == copied
    check(rig, probe, exact=True)
    host = rig.tree.cache_controller.mem_pool_host
    assert host.logical_size - host.available_size() <= len(EXACT) + len(MOVED) + 2 * rig.page_size


@pytest.mark.parametrize("policy", POLICIES)
def test_an_exact_prefix_in_host_memory_wins(make: Callable[..., Any], policy: str) -> None:
    rig = make(write_policy=policy)
    rig.serve([*passage(9, 32), *DOCUMENT], "donor of the same document")
    rig.serve(EXACT, "once more, for a selective cache", wish="off")
    pushed_to_host(rig, EXACT, "exact")
    rig.serve([*passage(9, 32), *DOCUMENT], "donor, on the device again")
    request = rig.submit([*EXACT, *TAIL], "asked")
    rig.step()
    assert request.cached_tokens == request.host_loaded_length == len(EXACT)
    check(rig, request, exact=True)
    finish(rig, request)
    assert confirmed(rig) == 0
    assert len(rig.side.requests) == 0


def test_reuse_that_an_exact_beginning_in_host_memory_forbids_is_counted(make: Callable[..., Any]) -> None:
    rig = make()
    pushed_to_host(rig, HEAD, "exact")
    rig.serve([*passage(9, 32), *DOCUMENT], "donor")
    request = rig.submit([*EXACT, *TAIL], "asked")
    rig.step()
    assert request.cached_tokens == request.host_loaded_length == len(HEAD)
    check(rig, request, exact=True)
    finish(rig, request)
    assert rig.side.provider.stats().declines[DeclineReason.EXACT_PREFIX_ELSEWHERE] == 1


def test_a_claim_is_given_up_when_host_memory_has_the_exact_tokens_after_all(make: Callable[..., Any]) -> None:
    rig = make()
    donor = [*passage(9, 32), *DOCUMENT]
    rig.serve(donor, "donor")
    request = rig.submit([*EXACT, *TAIL], "asked")
    request.init_next_round_input(rig.tree)
    assert request.host_hit_length > 300
    rig.waiting.remove(request)
    pushed_to_host(rig, EXACT, "exact")
    rig.serve(donor, "donor, on the device again")
    rig.waiting.append(request)
    rig.step()
    assert request.cached_tokens == len(EXACT)
    check(rig, request, exact=True)
    finish(rig, request)
    assert (confirmed(rig), rig.side.provider.stats().pinned_requests) == (0, 0)
    assert rig.side.provider.stats().declines[DeclineReason.EXACT_PREFIX_ELSEWHERE] == 2, "the donor came back too"


def test_a_donor_in_host_memory_alone_is_not_there_until_an_exact_request_brings_it_back(
    make: Callable[..., Any],
) -> None:
    rig = make()
    rig.serve(EXACT, "donor")
    rig.settle()
    rig.evict(rig.slots)
    request = rig.serve(MOVED, "asked")
    assert (request.cached_tokens, confirmed(rig)) == (0, 0)
    rig.settle()
    rig.evict(rig.slots)
    assert rig.serve([*EXACT, 7], "exact").cached_tokens == len(EXACT)
    rig.serve([*passage(8, 40), *DOCUMENT, *TAIL], "asked again")
    assert confirmed(rig) > 350
    rig.settle()
    rig.check_accounts()


def test_a_donor_that_is_being_loaded_in_the_same_batch_is_waited_for(make: Callable[..., Any]) -> None:
    rig = make()
    rig.serve(EXACT, "donor")
    rig.settle()
    rig.evict(rig.slots)
    overwritten = rig.submit(passage(11, rig.slots - 600), "takes the slots", wish="off")
    rig.step()
    rig.finish(overwritten)
    rig.settle()
    first, second = rig.submit([*EXACT, *TAIL], "exact"), rig.submit(MOVED, "asked")
    assert rig.step() == [first]
    check(rig, first, exact=True)
    assert rig.step() == [second]
    check(rig, second, exact=False)
    assert confirmed(rig) > 350
    for request in (first, second):
        finish(rig, request)


# --- Storage behind host memory ------------------------------------------------------------------------------------


def test_an_exact_prefix_in_storage_wins_after_a_restart(make: Callable[..., Any], tmp_path: Path) -> None:
    before = make(storage=tmp_path)
    before.serve(EXACT, "exact")
    before.settle()
    rig = make(storage=tmp_path)
    rig.serve([*passage(9, 32), *DOCUMENT], "donor of the same document")
    request = rig.submit([*EXACT, *TAIL], "asked")
    assert request.host_hit_length == 0, "SGLang asked its storage for what lies behind a claim"
    rig.wait_until(lambda: request in rig.step())
    assert request.cached_tokens == request.storage_hit_length == len(EXACT)
    check(rig, request, exact=True)
    finish(rig, request)
    assert confirmed(rig) == 0


def test_where_storage_has_nothing_reuse_follows_once_that_is_known(make: Callable[..., Any], tmp_path: Path) -> None:
    rig = make(storage=tmp_path)
    rig.serve(EXACT, "donor")
    request = rig.submit(MOVED, "asked")
    assert rig.tree.has_ongoing_prefetch(request.cache_request_handle)
    request.init_next_round_input(rig.tree)  # As SGLang does to sort its queue.
    assert request.host_hit_length == 0
    rig.wait_until(lambda: request in rig.step())
    assert confirmed(rig) > 350
    check(rig, request, exact=False)
    finish(rig, request)


def test_an_exact_prefix_that_was_evicted_while_waiting_is_fetched_again(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    rig = make(storage=tmp_path)
    rig.serve([*passage(9, 32), *DOCUMENT], "donor of the same document")
    rig.serve(EXACT, "exact", wish="off")
    rig.settle()
    request = rig.submit([*EXACT, *TAIL], "asked")
    assert request.storage_prefetch_last_match_len == len(EXACT)
    rig.wait_until(lambda: rig.tree.check_prefetch_progress(request.cache_request_handle))
    rig.evict(rig.slots)
    rig.forget_host()
    rig.waiting.remove(request)
    rig.serve([*passage(9, 32), *DOCUMENT], "the donor alone comes back")
    rig.waiting.append(request)
    rig.wait_until(lambda: request in rig.step())
    assert request.cached_tokens == len(EXACT)
    check(rig, request, exact=True)
    finish(rig, request)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_approximate_is_ever_stored(make: Callable[..., Any], tmp_path: Path, policy: str) -> None:
    rig = make(storage=tmp_path, write_policy=policy)
    rig.serve(EXACT, "donor")
    for number in range(2):
        rig.serve(MOVED, f"asked-{number}", output_tokens=4)
    assert confirmed(rig) > 700
    rig.settle()
    rig.evict(rig.slots)
    rig.settle()
    stored = sum(len(list(folder.glob("*.page"))) for folder in tmp_path.iterdir())
    # A selective cache has seen either once, which is not enough for it.
    exact = [] if policy == "write_through_selective" else [EXACT, OPENING]
    assert stored == sum(map(len, exact)) // rig.page_size
    later = make(storage=tmp_path)
    probe = later.submit(MOVED, "probe", wish="off")
    later.wait_until(lambda: probe in later.step())
    assert probe.cached_tokens == probe.storage_hit_length == (len(OPENING) if exact else 0)
    check(later, probe, exact=True)


def test_tenants_do_not_see_each_others_pages(make: Callable[..., Any], tmp_path: Path) -> None:
    before = make(storage=tmp_path)
    before.serve(EXACT, "exact", salt="mine", wish="off")
    before.settle()
    rig = make(storage=tmp_path)
    for salt in (None, "theirs"):
        assert rig.serve([*EXACT, *TAIL], f"asked by {salt}", salt=salt, wish="off").cached_tokens == 0
    rig = make(storage=tmp_path)
    assert rig.serve([*EXACT, *TAIL], "asked by me", salt="mine", wish="off").cached_tokens == len(EXACT)


@pytest.mark.parametrize("hurt", ["flipped", "cut", "gone"])
def test_damaged_pages_are_computed_again(make: Callable[..., Any], tmp_path: Path, hurt: str) -> None:
    before = make(storage=tmp_path)
    before.serve(EXACT, "exact", wish="off")
    before.settle()
    victim = sorted(next(tmp_path.iterdir()).glob("*.page"))[3]
    content = bytearray(victim.read_bytes())
    content[-5] ^= 4
    victim.write_bytes(content if hurt == "flipped" else content[:-9])
    if hurt == "gone":
        victim.unlink()
    rig = make(storage=tmp_path)
    request = rig.submit([*EXACT, *TAIL], "asked", wish="off")
    rig.wait_until(lambda: request in rig.step())
    assert request.cached_tokens < len(EXACT)
    check(rig, request, exact=True)
    finish(rig, request)


def test_whatever_is_evicted_when_what_is_exact_stays_exact(make: Callable[..., Any], tmp_path: Path) -> None:
    """Prompts come again and share passages, while device and host memory lose some of what storage keeps."""
    chance, passages = random.Random(1), [passage(seed, 96) for seed in range(30, 36)]
    rig, seen, from_storage = make(storage=tmp_path, slots=1600, host_ratio=1.5), [], 0
    for number in range(60):
        if seen and chance.random() < 0.4:
            prompt = [*chance.choice(seen), *passage(500 + number, 9)]
        else:
            prompt = [*passage(100 + number, 24), *(token for part in chance.sample(passages, 3) for token in part)]
            seen.append(prompt)
        request = rig.submit(prompt, str(number), wish=chance.choice(["on", "on", "off"]))
        rig.wait_until(lambda: request in rig.running or rig.step() is None)  # noqa: B023 - called at once
        check(rig, request, exact=not rig.is_approximate(request))
        from_storage += request.storage_hit_length
        finish(rig, request)
        if chance.random() < 0.3:
            rig.evict(chance.randrange(rig.slots))
        if chance.random() < 0.2:
            rig.forget_host()
    assert confirmed(rig) > 1000
    assert from_storage > 500
