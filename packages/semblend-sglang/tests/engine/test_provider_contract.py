"""The prefix contract, as it was proposed for SGLang: when its four calls are made, and what their answers do."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

from semblend_core import (
    DeclineReason,
    OutcomeKind,
    ProviderError,
    SemanticPrefixProvider,
    SemanticPrefixResult,
    as_token_ids,
    create_provider,
)
from semblend_core.serving import AliasLedger
from semblend_core.testing import passage
from semblend_sglang.scheduler.aliases import AliasPath


class Recording(SemanticPrefixProvider):
    """Answers what a test tells it to, and remembers every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None]] = []
        self.answer: Callable[[list[int]], SemanticPrefixResult | None] = lambda tokens: None

    def on_init(self) -> None:
        self.calls.append(("on_init", None))

    def on_prefix_miss(self, rid: str, token_ids: Sequence[int]) -> SemanticPrefixResult | None:
        self.calls.append(("on_prefix_miss", rid))
        return self.answer(list(token_ids))

    def on_request_cached(self, rid: str, token_ids: Sequence[int]) -> None:
        self.calls.append(("on_request_cached", rid))

    def on_shutdown(self) -> None:
        self.calls.append(("on_shutdown", None))

    def named(self, call: str) -> list[str | None]:
        return [rid for name, rid in self.calls if name == call]


@pytest.fixture
def provider() -> Recording:
    return Recording()


@pytest.fixture
def rig(new_rig: Callable[..., Any], provider: Recording) -> Any:
    return without_search(new_rig(), provider)


def without_search(rig: Any, provider: Recording) -> Any:
    """As where the setting names such a provider: SemBlend's own search is not there."""
    rig.tree.semblend = None
    rig.tree.semblend_aliases = AliasPath(AliasLedger(), rig.settings, rig.namespaces, rig.page_size)
    rig.tree.set_semantic_provider(provider)
    return rig


DONOR = passage(1, 300)


def changed(tokens: list[int], *places: int) -> list[int]:
    return [token + 1 if place in places else token for place, token in enumerate(tokens)]


def alias(tokens: list[int], *, cached: int | None = None, skip_insert: bool = True) -> SemanticPrefixResult:
    count = len(tokens) if cached is None else cached
    return SemanticPrefixResult(as_token_ids(tokens), count, skip_insert)


def test_on_init_comes_first_and_on_shutdown_where_a_process_ends_by_itself(rig: Any, provider: Recording) -> None:
    """What an ended process does: SGLang kills its scheduler as a rule, and then nobody calls anything."""
    assert provider.calls == [("on_init", None)]
    rig.serve(DONOR, "a")
    rig.tree.semblend_aliases.close()
    assert provider.calls[-1] == ("on_shutdown", None)


def test_an_exact_match_is_passed_through_without_asking(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    again = rig.serve(DONOR, "b")
    assert again.cached_tokens == len(DONOR) - 1
    assert provider.named("on_prefix_miss") == ["a"]


def test_a_miss_is_asked_once_however_long_the_request_waits(rig: Any, provider: Recording) -> None:
    request = rig.submit(DONOR, "a")
    for _ in range(5):
        request.init_next_round_input(rig.tree)
    assert provider.named("on_prefix_miss") == ["a"]


def test_a_match_without_a_request_is_untouched(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    key = rig.tree._key(array("q", passage(2, 300)), rig.tree._asked(rig.submit(DONOR, "z"), None, 0).key)
    asked = len(provider.calls)
    assert rig.tree.match_prefix(MatchPrefixParams(key=key)).device_prefix_len == 0
    assert len(provider.calls) == asked


def test_none_means_cold(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    assert rig.serve(changed(DONOR, 3), "b").cached_tokens == 3


def test_the_alias_is_used_where_it_lies(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR)
    prompt = [*changed(DONOR, 3, 10), *passage(9, 20)]
    request = rig.submit(prompt, "b")
    rig.step()
    assert request.cached_tokens == len(DONOR)
    assert request.skip_radix_cache_insert
    donor_slots = rig.exact_match(DONOR, rig.tree._asked(request, None, 0).key)
    assert rig.slots_of(request)[: len(DONOR)] == donor_slots
    rig.finish(request)
    rig.check_accounts()
    provider.answer = lambda tokens: None
    assert rig.serve(prompt, "probe").cached_tokens == 3, "KV of other tokens answered an exact probe"


def test_no_more_than_the_provider_vouches_for(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR, cached=100)
    assert rig.serve(changed(DONOR, 3), "b").cached_tokens == 100


def test_a_worse_alias_than_the_exact_match_is_ignored(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR[:50])
    request = rig.serve([*DONOR[:200], *passage(5, 60)], "b")
    assert request.cached_tokens == 200
    assert not request.skip_radix_cache_insert


def test_other_tokens_are_never_inserted_even_if_the_provider_says_so(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR, skip_insert=False)
    prompt = [*changed(DONOR, 3), *passage(9, 20)]
    rig.serve(prompt, "b")
    provider.answer = lambda tokens: None
    assert rig.serve(prompt, "probe").cached_tokens == 3


@pytest.mark.parametrize("kept", ["salt", "adapter"])
def test_the_alias_is_looked_for_under_the_requests_own_key(rig: Any, provider: Recording, kept: str) -> None:
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR)
    assert rig.serve(changed(DONOR, 3), "b", **{kept: "another"}).cached_tokens == 0


def test_exceptions_are_contained(rig: Any, provider: Recording, caplog: pytest.LogCaptureFixture) -> None:
    def raises(tokens: list[int]) -> SemanticPrefixResult | None:
        raise RuntimeError("provider bug")

    provider.answer = raises
    provider.on_request_cached = lambda rid, tokens: raises(tokens)  # type: ignore[assignment, misc]
    with caplog.at_level(logging.ERROR):
        request = rig.serve(DONOR, "a")
    assert request.cached_tokens == 0
    assert {record.message.split()[-1] for record in caplog.records} == {"on_prefix_miss", "on_request_cached"}
    rig.check_accounts()


def test_tokens_that_cannot_be_matched_are_contained_and_tried_once(
    rig: Any, provider: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    broken = alias(DONOR)
    object.__setattr__(broken, "alternate_token_ids", "no tokens")
    provider.answer = lambda tokens: broken
    request = rig.submit(DONOR, "a")
    for _ in range(3):
        request.init_next_round_input(rig.tree)
    assert [record.message.split(":")[0] for record in caplog.records] == ["the provider's tokens are of no use"]
    rig.step()
    assert (request.cached_tokens, request.skip_radix_cache_insert) == (0, False)
    rig.finish(request)
    rig.check_accounts()


def test_an_alias_that_is_no_longer_used_leaves_no_mark(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR) if tokens[3] != DONOR[3] else None
    prompt = [*changed(DONOR, 3), *passage(9, 20)]
    request = rig.submit(prompt, "b")
    request.init_next_round_input(rig.tree)
    assert request.skip_radix_cache_insert
    provider.answer = lambda tokens: None
    rig.waiting.clear()
    rig.serve(prompt, "meanwhile")
    rig.waiting.append(request)
    rig.step()
    assert request.cached_tokens == len(prompt) - 1
    assert not request.skip_radix_cache_insert
    rig.finish(request)
    assert provider.named("on_request_cached") == ["a", "meanwhile", "b"]
    rig.check_accounts()


def test_an_id_that_returns_with_another_prompt_is_asked_about_anew(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR) if tokens[4] == DONOR[4] else None
    lost = rig.submit([*changed(DONOR, 3), *passage(9, 20)], "b")
    lost.init_next_round_input(rig.tree)
    rig.waiting.remove(lost)  # SGLang tells nobody.
    request = rig.serve(passage(7, 200), "b")
    assert request.cached_tokens == 0
    assert provider.named("on_prefix_miss") == ["a", "b", "b"]
    assert not lost.skip_radix_cache_insert
    assert len(rig.tree.semblend_aliases.requests) == 0


def test_the_mark_is_apart_from_sglangs_switch(rig: Any, provider: Recording) -> None:
    """A cache whose SGLang does not advance marked prompts in pieces refuses them by the mark alone."""
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR)
    request = rig.submit([*changed(DONOR, 3), *passage(9, 20)], "b")
    aliases = rig.tree.semblend_aliases
    asked = rig.tree._asked(request, None, 3)
    assert aliases.match(asked, lambda tokens: rig.tree._look(tokens, asked.key)) is not None
    life = aliases.requests.of_request(request)
    assert life.is_approximate
    assert not request.skip_radix_cache_insert
    life.forbid_insert()
    assert request.skip_radix_cache_insert


def test_an_alias_with_a_tail_in_pieces(new_rig: Callable[..., Any], provider: Recording) -> None:
    rig = without_search(new_rig(chunk=64), provider)
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR)
    prompt = [*changed(DONOR, 3), *passage(9, 200)]
    request = rig.serve(prompt, "b")
    assert request.cached_tokens == len(DONOR)
    provider.answer = lambda tokens: None
    assert rig.serve(prompt, "probe").cached_tokens == 3
    rig.check_accounts()


def test_on_request_cached_comes_once_and_not_for_approximate_requests(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a", output_tokens=4)
    assert provider.named("on_request_cached") == ["a"]
    provider.answer = lambda tokens: alias(DONOR)
    rig.serve(changed(DONOR, 3), "b")
    assert provider.named("on_request_cached") == ["a"]


def test_requests_do_not_disturb_each_other(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR) if tokens[4] == DONOR[4] else None
    first = rig.submit([*changed(DONOR, 3), *passage(6, 30)], "b")
    second = rig.submit(passage(7, 200), "c")
    rig.step()
    assert (first.cached_tokens, second.cached_tokens) == (300, 0)
    assert (first.skip_radix_cache_insert, second.skip_radix_cache_insert) == (True, False)
    for request in (first, second):
        rig.finish(request)
    rig.check_accounts()


def test_a_retracted_request_is_computed_and_may_be_cached(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR)
    prompt = [*changed(DONOR, 3), *passage(9, 20)]
    request = rig.submit(prompt, "b")
    rig.step()
    rig.retract(request)
    assert not request.skip_radix_cache_insert
    rig.step()
    rig.finish(request)
    provider.answer = lambda tokens: None
    assert rig.serve(prompt, "probe").cached_tokens == len(prompt) - 1
    rig.check_accounts()


def test_beside_a_hierarchical_cache_exact_tokens_win_and_the_alias_is_what_the_device_holds(
    new_tiered_rig: Callable[..., Any], provider: Recording
) -> None:
    rig = without_search(new_tiered_rig(), provider)
    exact = changed(DONOR, 3)
    for name, prompt in (("a", DONOR), ("b", exact)):
        rig.serve(prompt, name)
    rig.settle()
    rig.evict(rig.slots)
    rig.serve(DONOR[:100], "c")  # Comes back from host memory; the rest stays there.
    provider.answer = lambda tokens: alias(DONOR)
    assert rig.serve([*exact, 7], "asked").cached_tokens == len(exact)
    assert rig.serve(changed(DONOR, 5), "asked otherwise").cached_tokens == 100
    rig.settle()
    rig.check_accounts()


# --- What is counted -------------------------------------------------------------------------------------------------


def test_kv_of_other_tokens_is_an_alias_and_never_reuse(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    provider.answer = lambda tokens: alias(DONOR)
    rig.serve([*changed(DONOR, 3), *passage(9, 20)], "b")
    stats = rig.tree.semblend_aliases.ledger.stats()
    assert stats.outcomes == {OutcomeKind.DECLINED: 1, OutcomeKind.ALIAS: 1}
    assert stats.declines == {DeclineReason.NO_SPANS: 1}
    assert (stats.alias_tokens, stats.confirmed_tokens) == (len(DONOR) - 3, 0)


def test_what_is_no_alias_is_counted_by_its_reason(rig: Any, provider: Recording) -> None:
    rig.serve(DONOR, "a")
    rig.serve(DONOR, "covered by the exact cache")
    provider.answer = lambda tokens: alias(passage(8, 300))
    rig.serve(passage(7, 300), "of tokens that the cache does not hold")
    stats = rig.tree.semblend_aliases.ledger.stats()
    assert stats.outcomes == {OutcomeKind.DECLINED: 2, OutcomeKind.EXACT_PREFIX: 1}
    assert stats.declines == {DeclineReason.NO_SPANS: 1, DeclineReason.DONOR_EVICTED: 1}


# --- set_semantic_provider: register, replace, clear -----------------------------------------------------------------


@pytest.fixture
def searching(new_rig: Callable[..., Any]) -> Any:
    """SemBlend's own search is there, as in a server whose settings name no provider."""
    return new_rig(lookup_budget_ms=600_000.0)


def moved(rig: Any, name: str) -> int:
    """Served with another instruction in front: how much SemBlend's own search reused."""
    before = rig.side.provider.stats().confirmed_tokens
    rig.serve([*passage(40 + len(name), 80), *DONOR], name)
    return int(rig.side.provider.stats().confirmed_tokens - before)


def test_a_provider_that_is_set_is_asked_instead_of_the_search_and_cleared_gives_it_back(
    searching: Any, provider: Recording
) -> None:
    searching.serve(DONOR, "a")
    searching.tree.set_semantic_provider(provider)
    assert provider.calls == [("on_init", None)]
    assert moved(searching, "b") == 0
    assert provider.named("on_prefix_miss") == ["b"]
    assert provider.named("on_request_cached") == ["b"]

    searching.tree.set_semantic_provider(None)
    assert provider.calls[-1] == ("on_shutdown", None)
    asked = len(provider.calls)
    assert moved(searching, "cc") > 200
    assert len(provider.calls) == asked
    searching.check_accounts()


def test_its_aliases_are_counted_with_the_search_and_apart_from_reuse(searching: Any, provider: Recording) -> None:
    searching.serve(DONOR, "a")
    searching.tree.set_semantic_provider(provider)
    provider.answer = lambda tokens: alias(DONOR)
    prompt = [*changed(DONOR, 3), *passage(9, 20)]
    assert searching.serve(prompt, "b").cached_tokens == len(DONOR)
    stats = searching.side.provider.stats()
    assert stats.outcomes[OutcomeKind.ALIAS] == 1
    assert (stats.alias_tokens, stats.confirmed_tokens) == (len(DONOR) - 3, 0)
    searching.tree.set_semantic_provider(None)
    assert searching.serve(prompt, "probe", wish="off").cached_tokens == 3, "KV of other tokens answered an exact probe"
    searching.check_accounts()


def test_a_provider_replaces_another_and_what_waits_is_asked_of_it(searching: Any, provider: Recording) -> None:
    searching.serve(DONOR, "a")
    searching.tree.set_semantic_provider(provider)
    waiting = searching.submit([*changed(DONOR, 3), *passage(9, 20)], "b")
    waiting.init_next_round_input(searching.tree)
    second = Recording()
    second.answer = lambda tokens: alias(DONOR)
    searching.tree.set_semantic_provider(second)
    searching.step()
    assert waiting.cached_tokens == len(DONOR)
    assert (provider.named("on_prefix_miss"), second.named("on_prefix_miss")) == (["b"], ["b"])
    assert provider.calls[-1] == ("on_shutdown", None)
    searching.finish(waiting)
    searching.check_accounts()


def test_the_same_provider_set_twice_is_initialised_once(searching: Any, provider: Recording) -> None:
    searching.tree.set_semantic_provider(provider)
    searching.tree.set_semantic_provider(provider)
    assert provider.calls == [("on_init", None)]


def test_a_request_that_took_kv_of_other_tokens_is_not_published_after_its_provider_has_gone(
    searching: Any, provider: Recording
) -> None:
    searching.serve(DONOR, "a")
    searching.tree.set_semantic_provider(provider)
    provider.answer = lambda tokens: alias(DONOR)
    prompt = [*changed(DONOR, 3), *passage(9, 20)]
    under_way = searching.submit(prompt, "b")
    searching.step()
    searching.tree.set_semantic_provider(None)
    searching.finish(under_way)
    assert searching.serve(prompt, "probe", wish="off").cached_tokens == 3
    assert len(searching.tree.semblend_aliases.requests) == 0
    searching.check_accounts()


def test_a_provider_that_does_not_come_up_is_not_asked(searching: Any, provider: Recording) -> None:
    def broken() -> None:
        raise RuntimeError("no model")

    failing = Recording()
    failing.on_init = broken  # type: ignore[method-assign]
    searching.tree.set_semantic_provider(provider)
    with pytest.raises(RuntimeError, match="no model"):
        searching.tree.set_semantic_provider(failing)
    searching.serve(DONOR, "a")
    assert (provider.named("on_prefix_miss"), failing.calls) == ([], [])


def test_what_is_no_prefix_provider_is_refused_with_what_to_write(searching: Any) -> None:
    with pytest.raises(ProviderError, match="no SemanticPrefixProvider"):
        searching.tree.set_semantic_provider("my provider")
    with pytest.raises(ProviderError, match="SEMBLEND_SGLANG_PROVIDER"):
        searching.tree.set_semantic_provider(create_provider(searching.settings, engine="sglang"))


def test_where_semblend_is_off_no_provider_can_be_set(searching: Any, provider: Recording) -> None:
    searching.tree.semblend = None
    with pytest.raises(ProviderError, match="SemBlend is off"):
        searching.tree.set_semantic_provider(provider)
