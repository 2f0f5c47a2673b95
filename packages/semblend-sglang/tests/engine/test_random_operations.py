"""Thousands of random operations on the real tree: no slot is lost, nobody owns one twice, and the tree stays exact.

Nothing is reused of other weights or of another tenant, and nobody waits for ever.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import releases
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from semblend_core.serving import Scored
from semblend_core.testing import passage
from semblend_sglang.scheduler.requests import TreeKey

PASSAGES = [passage(seed, length) for seed, length in enumerate((48, 64, 80, 96, 112, 160))]
SALTS = (None, None, "tenant")
KINDS_OF_CHANGES = ("flush", "update", "update and flush", "over rdma", "over rdma and flush")
AT_A_TIME = 4
"""Examples that are drawn from one seed: many from one are much alike."""
MOST_STEPS_TO_THE_END = 200
"""Until everybody who waits is served."""


class Operations(RuleBasedStateMachine):
    """Requests are mixed from few passages, so that most of them find donors, in a pool that holds only some."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "lookup_budget_ms": 600_000.0,
        "min_saved_tokens": 16,
        "quality_share": 1.0,
    }
    new_rig: Callable[..., Any]
    options: dict[str, Any]
    happened: Counter[str]
    """Outcomes of all runs together: a run that reuses nothing would prove nothing."""
    numbers: Iterator[int]
    """Of the runs."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = type(self).new_rig(slots=2048, most_sequences=8, **self.SETTINGS, **self.options)
        self.served: list[tuple[list[int], TreeKey]] = []
        self.approximate: list[tuple[list[int], TreeKey]] = []
        """Those of them that reused something."""
        self.computed: set[str] = set()
        """Requests that have seen a forward."""
        self.count = 0
        self.is_quiet = False
        self.serve_everything()

    @initialize(is_quiet=st.booleans())
    def begin(self, is_quiet: bool) -> None:
        """In half of the runs nobody takes the donors away, so that much is reused in them."""
        self.is_quiet = is_quiet

    @precondition(
        lambda self: (
            not self.rig.waiting and not self.rig.is_paused and not self.rig.chunked and len(self.rig.running) < 3
        )
    )
    @rule()
    def serve_everything(self) -> None:
        """A donor for all that follows."""
        self.count += 1
        prompt = [*passage(1000 + self.count, 8), *(token for part in PASSAGES for token in part)]
        self.rig.serve(prompt, f"r{self.count}", wish={"mode": "on" if self.count % 2 else "discovery"})
        self.served.append((prompt, TreeKey(None)))

    @rule(
        order=st.lists(st.integers(0, len(PASSAGES) - 1), min_size=2, max_size=4, unique=True),
        own=st.integers(1, 40),
        salt=st.sampled_from(SALTS),
        wish=st.sampled_from(("on", "on", "on", "off", "discovery")),
    )
    def submit(self, order: list[int], own: int, salt: str | None, wish: str) -> None:
        if len(self.rig.waiting) >= 6:
            return
        self.count += 1
        fresh = passage(1000 + self.count, own + 20)
        prompt = [*fresh[:own], *(token for index in order for token in PASSAGES[index]), *fresh[own:]]
        self.rig.submit(prompt, f"r{self.count}", salt=salt, wish=wish)
        self.served.append((prompt, TreeKey(None, salt)))

    @precondition(lambda self: self.approximate)
    @rule(
        which=st.integers(0, 100),
        more=st.lists(st.integers(0, len(PASSAGES) - 1), max_size=1),
        salt=st.sampled_from((*SALTS, *["same"] * 6)),
        wish=st.sampled_from((*["on"] * 6, *["off"] * 2, "discovery")),
    )
    def go_on(self, which: int, more: list[int], salt: str | None, wish: str) -> None:
        """The next turn of somebody's conversation, or the same question from another tenant."""
        if len(self.rig.waiting) >= 6:
            return
        known = self.approximate if wish == "on" else self.served
        if wish == "off":
            self.rig.settle()
            self.rig.evict(self.rig.slots)  # To host memory, if there is such.
        prompt, key = known[-1 - which % min(3, len(known))]
        self.count += 1
        prompt = [*prompt[:1200], *passage(1000 + self.count, 24), *(token for i in more for token in PASSAGES[i])]
        prompt += passage(3000 + self.count, 12)
        key = key if salt == "same" else TreeKey(None, salt)
        self.rig.submit(prompt, f"r{self.count}", salt=key.cache_salt, wish=wish)
        self.served.append((prompt, key))
        self.step(rounds=1)

    @precondition(lambda self: self.rig.waiting or self.rig.chunked)
    @rule(rounds=st.integers(1, 3))
    def step(self, rounds: int) -> None:
        for _ in range(rounds):
            for request in self.rig.step():
                self.check_request(request)
                self.computed.add(request.rid)

    @precondition(lambda self: self.rig.running)
    @rule(which=st.integers(0, 100))
    def finish(self, which: int) -> None:
        self.rig.finish(self.rig.running[which % len(self.rig.running)])

    @precondition(lambda self: self.rig.running)
    @rule(which=st.integers(0, 100))
    def retract(self, which: int) -> None:
        self.rig.retract(self.rig.running[which % len(self.rig.running)])

    @precondition(lambda self: self.rig.running or self.rig.waiting or self.rig.chunked)
    @rule(which=st.integers(0, 100))
    def abort(self, which: int) -> None:
        chunked = [self.rig.chunked] if self.rig.chunked else []
        everyone = [*self.rig.running, *self.rig.waiting, *chunked]
        self.rig.abort(everyone[which % len(everyone)])

    @rule(retract=st.booleans())
    def pause(self, retract: bool) -> None:
        """What comes next finds it paused, or goes on."""
        if self.rig.is_paused:
            self.rig.resume()
        elif self.count % 3 == 0:
            self.rig.pause(retract=retract)

    @precondition(lambda self: not self.is_quiet and self.count % 3 == 1)
    @rule(kind=st.sampled_from(KINDS_OF_CHANGES))
    def change(self, kind: str) -> None:
        """Of what donors are made: trainers do this with requests in the queue, running, or paused."""
        self.rig.settle()
        if kind == "flush":
            changed = self.rig.flush()
        else:
            update = self.rig.update_over_rdma if "rdma" in kind else self.rig.update_weights
            update(self.rig.flush if "flush" in kind else lambda: None)
            changed = True
        if changed:
            self.happened.update((kind, "changed"))
            self.approximate.clear()

    @precondition(lambda self: not self.is_quiet and self.count % 3 == 0)
    @rule(salt=st.sampled_from(SALTS[1:]))
    def purge(self, salt: str | None) -> None:
        """Of one tenant, with requests of all in the queue and running."""
        side, (other,) = self.rig.side, {*SALTS} - {salt}
        others = replace(side.operator.held_by(other), oldest_s=None)
        self.happened["purged"] += not side.operator.purge(salt).nothing
        assert side.operator.held_by(salt).nothing
        assert replace(side.operator.held_by(other), oldest_s=None) == others, "another tenant's"
        for life in side.requests:
            waits_for_purged = life.key.cache_salt == salt and life.is_queued and (life.claim or life.in_place)
            assert not waits_for_purged, f"{life.request_id} counts on what was purged"
        self.approximate = [(prompt, key) for prompt, key in self.approximate if key.cache_salt != salt]

    @precondition(lambda self: not (self.rig.running or self.rig.waiting or self.rig.chunked or self.rig.is_paused))
    @rule()
    def compare(self) -> None:
        """What an idle SGLang does next with an answer that was served."""
        found = self.rig.side.comparing.next_order()
        if found is None:
            return
        comparison, order = found
        self.count += 1
        request = self.rig.submit(
            order.token_ids.tolist(), f"own-{self.count}", wish="off", salt=order.asker.key.cache_salt
        )
        if order.scored_from is not None:
            request.return_logprob, request.logprob_start_len = True, order.scored_from
        order.begin(request)
        while request in self.rig.waiting or request is self.rig.chunked:
            before = len(self.rig.waiting), self.rig.chunked and releases.extend_end(self.rig.chunked)
            self.step(rounds=1)
            if (len(self.rig.waiting), self.rig.chunked and releases.extend_end(self.rig.chunked)) == before:
                break
        scores = None
        if request in self.rig.running:
            self.rig.finish(request)
            size = comparison.answer.size
            scores = Scored(np.zeros((size, 1), np.int64), np.full((size, 1), -0.1))
        else:
            self.rig.abort(request)
        self.rig.side.comparing.computed(comparison, order, scores if order.scored_from is not None else None)
        news = self.rig.side.guard.news.take()
        self.happened.update({} if news is None else news["results"])

    @rule(tokens=st.integers(1, 200))
    def evict(self, tokens: int) -> None:
        self.rig.evict(tokens)

    @precondition(lambda self: self.count % 4 == 0 and "move_slots" not in vars(self.rig.side.pool))
    @rule()
    def fail_the_next_move(self) -> None:
        def fails(*moves: Any) -> None:
            del self.rig.side.pool.move_slots
            raise RuntimeError("a fault that the test asked for")

        self.rig.side.pool.move_slots = fails

    @invariant()
    def accounts_close(self) -> None:
        self.rig.check_accounts()

    @invariant()
    def what_is_gone_on_from_is_that_of_its_tokens(self) -> None:
        self.rig.check_lineages()

    @invariant()
    def the_tree_is_exact(self) -> None:
        from toy_model import exact_numbers

        for prompt, key in self.served[-6:]:
            slots = self.rig.exact_match(prompt, key)
            assert self.rig.tokens_at(slots) == prompt[: len(slots)]
            assert self.rig.numbers_at(slots) == exact_numbers(prompt[: len(slots)])

    def check_request(self, request: Any) -> None:
        """Every token has its own KV, at its own place, and SGLang's count of what was cached is true."""
        slots = self.rig.slots_of(request)[: releases.extend_end(request)]
        known = list(request.origin_input_ids + request.output_ids)
        assert self.rig.tokens_at(slots) == known[: len(slots)]
        assert self.rig.key_error(slots, list(range(len(slots)))) < 1e-4
        assert 0 <= request.cached_tokens < len(request.origin_input_ids)
        weights, tenants = self.rig.signed_at(slots)
        assert tenants == {self.rig.tenant_of(request)}, "KV of another tenant"
        life = self.rig.side.requests.of_request(request)
        if life is not None and life.is_approximate:
            if request.rid not in self.computed:
                reused_from = life.claim.start if life.in_place is None else life.in_place.start
                assert self.rig.signed_at(slots[reused_from:])[0] == {self.rig.weights}, "KV of other weights"
            self.happened["taken in place"] += life.in_place is not None
            self.approximate.append((list(request.origin_input_ids), life.key))
        if not self.rig.is_approximate(request):
            from toy_model import exact_numbers

            assert self.rig.numbers_at(slots) == exact_numbers(known[: len(slots)])
            self.happened["weights mixed by SGLang itself"] += len(weights) > 1
            self.happened["loaded from host memory"] += getattr(request, "host_loaded_length", 0)

    def serve_all(self) -> None:
        self.rig.resume()
        for _ in range(MOST_STEPS_TO_THE_END):
            self.step(rounds=1)
            for request in list(self.rig.running):
                self.rig.finish(request)
            if not self.rig.waiting and not self.rig.chunked:
                return
            self.rig.settle()
        raise AssertionError(f"{[request.rid for request in self.rig.waiting]} wait for ever")

    def serve_a_donor(self) -> None:
        """Every other one is served for discovery only."""
        for _ in range(2):
            self.serve_everything()

    def see_each_thing_once(self, change: str) -> None:
        """Whatever came before by chance: what is drawn differs with the modules that happen to be loaded."""
        self.serve_all()
        vars(self.rig.side.pool).pop("move_slots", None)
        self.change("flush")  # Weights that were changed without one leave nobody a donor.
        self.serve_everything()
        for which in (0, 1):  # SGLang may copy to host memory what was asked for twice.
            self.go_on(which, [], "same", "off")
            self.serve_all()
        self.serve_a_donor()
        self.submit([3, 2], 10, None, "discovery")
        self.submit([1, 4], 10, None, "on")
        self.serve_all()
        self.submit([5, 4, 3, 2], 1, None, "on")  # Enough for the balanced tier to look before it chooses.
        self.serve_all()
        self.go_on(0, [], "same", "on")
        self.serve_all()
        while self.rig.side.comparing.has_work:
            self.compare()
        self.change("flush")
        self.serve_a_donor()
        self.fail_the_next_move()
        self.submit([2, 5, 0], 10, None, "on")
        self.serve_all()
        self.accounts_close()
        self.purge(None)
        self.accounts_close()
        self.change(change)
        self.accounts_close()

    def teardown(self) -> None:
        number = next(self.numbers)
        if number % 2:
            self.see_each_thing_once(KINDS_OF_CHANGES[number % len(KINDS_OF_CHANGES)])
        for request in [*self.rig.running, *self.rig.waiting, *([self.rig.chunked] if self.rig.chunked else [])]:
            self.rig.abort(request)
        self.rig.settle()
        self.rig.evict(self.rig.slots)
        self.rig.check_accounts()
        assert self.rig.allocator.available_size() == self.rig.slots
        assert len(self.rig.side.requests) == 0
        stats = self.rig.side.provider.stats()
        assert stats.pinned_requests == 0
        self.rig.close()
        self.happened.update({str(kind): count for kind, count in stats.outcomes.items()})
        self.happened.update({str(reason): count for reason, count in stats.declines.items()})
        self.happened.update({f"probes that {end}": count for end, count in stats.probes.items()})


@pytest.mark.parametrize(
    "options",
    [
        {"page_size": 1, "core": "python", "chunk": 256, "quality_tier": "balanced", "recompute_limit": 0.15},
        {"page_size": 1, "core": "rust", "chunk": None},
        {"page_size": 16, "core": "rust", "chunk": 192, "quality_tier": "balanced", "recompute_limit": 0.15},
        {"page_size": 16, "core": "python", "chunk": 512, "latent": True},
    ],
    ids=["page-1-python", "page-1-rust-whole-prompts", "page-16-rust", "page-16-python-latent"],
)
@pytest.mark.parametrize("examples", [8, pytest.param(150, marks=pytest.mark.exhaustive)])
def test_accounts_close_whatever_happens(new_rig: Callable[..., Any], options: dict[str, Any], examples: int) -> None:
    happened = what_happens(new_rig, options, examples)
    seen = ["materialized", "load_failed", "discovery_only", "taken in place", "changed", "purged", "compared"]
    seen += ["probes that chose"] if options.get("quality_tier") == "balanced" else []
    assert all(happened[what] for what in seen), happened
    if examples > 100:
        assert all(happened[kind] for kind in KINDS_OF_CHANGES), happened


@pytest.mark.parametrize(
    "options",
    [
        {"page_size": 1, "core": "rust", "chunk": 256, "write_policy": "write_back"},
        {"page_size": 16, "core": "python", "chunk": 512, "latent": True, "host_ratio": 1.0},
    ],
    ids=["page-1-rust-write-back", "page-16-python-latent"],
)
def test_accounts_close_beside_a_hierarchical_cache(
    new_tiered_rig: Callable[..., Any], options: dict[str, Any]
) -> None:
    happened = what_happens(new_tiered_rig, options, 6)
    assert all(happened[what] for what in ("materialized", "loaded from host memory")), happened


def what_happens(new_rig: Callable[..., Any], options: dict[str, Any], examples: int) -> Counter[str]:
    happened: Counter[str] = Counter()
    numbers = itertools.count()
    for number in range(-(-examples // AT_A_TIME)):
        configured = {"new_rig": staticmethod(new_rig), "options": options, "happened": happened, "numbers": numbers}
        run_state_machine_as_test(
            seed(number)(type("Configured", (Operations,), configured)),
            settings=settings(
                max_examples=AT_A_TIME,
                stateful_step_count=60,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
                phases=[Phase.generate],
            ),
        )
    return happened
