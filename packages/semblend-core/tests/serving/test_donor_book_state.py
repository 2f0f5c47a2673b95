"""Whatever becomes of donors, and in whatever order: the book knows those that are there, and counts what they hold."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semblend_core import LookupRequest, Namespace, Outcome, OutcomeKind, Settings, TokenIds, create_provider
from semblend_core.serving import Donor, DonorBook
from semblend_core.serving.ages import Limits
from semblend_core.serving.prefixes import STEP, DonorName

MOST_AGE_S = 100.0
texts = st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=4), st.sampled_from([0, 7, 20]))
"""Pieces, of which many prompts begin with the same, and how much of the last is left out."""
tenants, requests, numbers = st.sampled_from("ab"), st.sampled_from("pq"), st.integers(0, 3)


def tokens_of(text: tuple[list[int], int]) -> TokenIds:
    pieces, cut = text
    rows = [np.random.default_rng(each).integers(0, 50_000, 40 + each) for each in pieces]
    ids = np.concatenate(rows)[: -cut or None].astype(np.int32)
    ids.flags.writeable = False
    return ids


def namespace(salt: str) -> Namespace:
    return Namespace(
        model="m", revision="r", tokenizer="t", dtype="f", kv_layout="l", block_size=16, adapter=None, salt=salt
    )


NAMESPACES = {namespace(salt).digest: namespace(salt) for salt in "ab"}


class Donors(RuleBasedStateMachine):
    """A book beside a plain list of what must be in it."""

    @initialize(most_tokens=st.sampled_from([None, 200, 600]), quota=st.sampled_from([None, 400]))
    def begin(self, most_tokens: int | None, quota: int | None) -> None:
        self.now = time.time()
        self.clock = mock.patch("time.time", side_effect=lambda: self.now)
        self.clock.start()
        settings = Settings(min_span_tokens=16, min_saved_tokens=1, lookup_budget_ms=1e6)
        self.provider: Any = create_provider(settings, engine="test")
        self.most_tokens, self.there = most_tokens, dict[DonorName, TokenIds]()
        limits = Limits(MOST_AGE_S, quota)
        self.book: DonorBook[None] = DonorBook(self.provider, 8, self._gone, limits, most_tokens=most_tokens)

    def teardown(self) -> None:
        self.clock.stop()

    def _gone(self, donor: Donor[None]) -> None:
        self.there.pop(donor.name, None)

    @rule(some=st.lists(texts, min_size=1, max_size=3), salt=tenants, late_s=st.sampled_from([0.0, 50.0]))
    def come(self, some: list[tuple[list[int], int]], salt: str, late_s: float) -> None:
        for text in some:
            self._comes(tokens_of(text), salt, late_s)

    def _comes(self, tokens: TokenIds, salt: str, late_s: float) -> None:
        donor = self.book.offer(namespace(salt), tokens, None, born=self.now - late_s)
        if donor is None:
            return
        self.there[donor.name] = tokens
        before = dict(self.there)
        self.book.replace_prefixes(donor, tokens)
        for name in before.keys() - self.there.keys():
            longer = [each for (digest, _), each in self.there.items() if digest == name[0]]
            assert any(np.array_equal(each[: before[name].size], before[name]) for each in longer), "nobody else has it"

    @rule(request=requests, number=numbers)
    def is_planned_with(self, request: str, number: int) -> None:
        for (digest, _), tokens in list(self.there.items())[number:][:1]:
            self.provider.lookup(LookupRequest(request, NAMESPACES[digest], tokens, 0))

    @rule(request=requests)
    def is_needed_no_more(self, request: str) -> None:
        self.provider.report_outcome(Outcome(request, OutcomeKind.COLD))

    @rule(number=numbers)
    def is_used(self, number: int) -> None:
        for digest, donor_id in list(self.there)[number:][:1]:
            assert self.book.get(NAMESPACES[digest], donor_id) is not None

    @rule(number=numbers)
    def is_lost(self, number: int) -> None:
        for name in list(self.there)[number:][:1]:
            self.book.drop(name)
            assert name not in self.there

    @rule(seconds=st.sampled_from([1.0, 60.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds
        self.book.drop_expired()

    @rule(salt=st.sampled_from("ab-"))
    def all_are_of_no_use(self, salt: str) -> None:
        """Those of a purged tenant; or of everybody, as the weights are new."""
        if salt == "-":
            self.book.clear()
            assert not self.there
            return
        found = self.book.forget_tenant(namespace(salt).salt_digest)
        theirs = [name for name in self.there if name[0] == namespace(salt).digest]
        assert found.donors == len(theirs)
        for name in theirs:
            del self.there[name]
        self.provider.sweep()

    @invariant()
    def book_is_right(self) -> None:
        assert set(self.book._donors) == set(self.there) == set(self.book.prefixes._ends)
        assert set(self.provider.registry._by_id) == set(self.there)
        self.provider.check_integrity()
        self.book.prefixes.check_integrity()
        held = {
            (name[0], tokens[:end].tobytes())
            for name, tokens in self.there.items()
            for end in range(STEP, tokens.size + 1, STEP)
        }
        assert self.book.prefixes.tokens == STEP * len(held), "a shared beginning is held once"
        assert self.most_tokens is None or STEP * len(held) <= self.most_tokens or len(self.there) == 1
        for salt in "ab":
            theirs = [tokens.size for name, tokens in self.there.items() if name[0] == namespace(salt).digest]
            report = self.book.held_by(namespace(salt).salt_digest)
            assert (report.donors, report.tokens) == (len(theirs), sum(theirs))


TestDonors = Donors.TestCase
TestDonors.settings = hypothesis_settings(max_examples=40, stateful_step_count=30)
