"""A purge takes all that a scheduler's half holds of one tenant, and nothing that it holds of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semblend_core import (
    LookupRequest,
    Namespace,
    Outcome,
    OutcomeKind,
    SelfTestResult,
    SelfTestState,
    Settings,
    Span,
    TenantReport,
    TokenIds,
    create_provider,
    donor_id_of,
    open_audit,
    read_audit,
    tenant_of_salt,
)
from semblend_core.serving import Claim, DonorKeeper, HotOpenings, LineageBook, RequestLife, SelfTest, Tenants
from semblend_core.testing import Marker, found_in_files, found_in_memory

SALTS = ("a", "b", None)
SETTINGS = Settings(min_span_tokens=16, lookup_budget_ms=600_000.0, sharing="all")


def namespace(salt: str | None = "a", adapter: str | None = None) -> Namespace:
    return Namespace(
        model="m", revision="r", tokenizer="t", dtype="f", kv_layout="l", block_size=16, adapter=adapter, salt=salt
    )


def prompt(seed: int, tokens: int = 200) -> TokenIds:
    ids = np.random.default_rng(seed).integers(10_000, 50_000, tokens).astype(np.int32)
    ids.flags.writeable = False
    return ids


class Half:
    """What a scheduler's half is made of, without an engine."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.audit = open_audit(settings, "test")
        self.provider = create_provider(settings, engine="test", audit=self.audit)
        self_test = SelfTest(1, self.provider.note_self_test)
        self_test.hear({0: SelfTestResult(SelfTestState.PASSED)})
        self.keeper = DonorKeeper(self.provider, settings, self_test, audit=self.audit)
        self.lineages, self.hot = LineageBook(), HotOpenings[None](2)
        self.lives: list[RequestLife] = []
        holders = (self.keeper, _Lineages(self.lineages), self.hot)
        self.tenants = Tenants(self.provider, lambda: self.lives, holders, self.audit)

    def purge(self, salt: str | None) -> TenantReport:
        found = self.tenants.begin_purge(tenant_of_salt(salt))
        self.tenants.finish_purge()
        return found

    def capture(self, where: Namespace, tokens: TokenIds) -> RequestLife:
        life = RequestLife(None, f"request-{len(self.lives)}", where, tokens)
        self.lives.append(life)
        self.keeper.decide(life)
        return life

    def durable(self, life: RequestLife) -> None:
        self.keeper.durable((life.namespace.digest, donor_id_of(life.token_ids)), frozenset([0]))

    def finds(self, where: Namespace, tokens: TokenIds) -> bool:
        asked = np.concatenate([prompt(999, 50), tokens])
        plan = self.provider.lookup(LookupRequest("asks", where, asked, 0)).plan
        self.provider.report_outcome(Outcome("asks", OutcomeKind.COLD))
        return plan is not None


class _Lineages:
    def __init__(self, book: LineageBook) -> None:
        self._book = book

    def forget_tenant(self, tenant: str) -> TenantReport:
        return TenantReport(lineages=len(self._book.forget_tenant(tenant)))

    def held_by(self, tenant: str) -> TenantReport:
        return self._book.held_by(tenant)


@pytest.fixture
def half() -> Iterator[Half]:
    made = Half()
    yield made
    made.provider.check_integrity()
    made.provider.close()


def test_the_tenant_is_the_beginning_of_its_namespaces() -> None:
    for salt in SALTS:
        for each in (namespace(salt), namespace(salt, adapter="lora")):
            assert each.digest.startswith(tenant_of_salt(salt))
    assert len({tenant_of_salt(salt) for salt in (*SALTS, "")}) == 4


def test_donors_go_under_every_adapter_and_those_of_others_stay(half: Half) -> None:
    for seed, where in enumerate([namespace(), namespace(adapter="lora"), namespace("b"), namespace(None)]):
        half.durable(half.capture(where, prompt(seed)))
    held, purged = half.tenants.held_by(tenant_of_salt("a")), half.purge("a")
    assert (held.donors, held.tokens) == (purged.donors, purged.tokens) == (2, 400)
    assert held.oldest_s is not None
    assert not half.finds(namespace(), prompt(0))
    assert not half.finds(namespace(adapter="lora"), prompt(1))
    assert half.finds(namespace("b"), prompt(2))
    assert half.finds(namespace(None), prompt(3))
    assert half.tenants.held_by(tenant_of_salt("a")).nothing
    assert half.purge("a").nothing, "once is enough"


def test_a_capture_that_ends_after_the_purge_makes_no_donor(half: Half) -> None:
    life = half.capture(namespace(), prompt(1))
    assert half.purge("a").captures == 1
    half.durable(life)
    assert not half.finds(namespace(), prompt(1))
    assert half.tenants.held_by(tenant_of_salt("a")).nothing


def test_a_request_under_way_is_not_captured_after_the_purge_and_one_that_comes_later_is(half: Half) -> None:
    under_way = RequestLife(None, "under way", namespace(), prompt(1))
    half.lives.append(under_way)
    half.purge("a")
    assert half.keeper.decide(under_way) is None
    half.durable(half.capture(namespace(), prompt(1)))
    assert half.finds(namespace(), prompt(1))


def test_what_an_earlier_process_left_is_not_offered_though_it_is_told_of_later(half: Half) -> None:
    left = [(namespace().digest, "one", prompt(1), 1.7e9), (namespace("b").digest, "two", prompt(2), 1.7e9)]
    half.keeper.recovered({0: left[:1]})
    assert half.tenants.held_by(tenant_of_salt("a")).donors == 1
    assert half.purge("a").donors == 1
    half.keeper.recovered({0: left})
    for salt in ("a", "b"):
        half.keeper.meet(namespace(salt))
    assert not half.finds(namespace(), prompt(1))
    assert half.finds(namespace("b"), prompt(2))


def test_lineages_and_openings_go(half: Half) -> None:
    claim = Claim(0, 160, (Span(40, "donor", 0, 100),), ((0, 40),))
    for salt in ("a", "b"):
        lineage = half.lineages.grow(namespace(salt), prompt(1), claim, 32)
        lineage.confirmed = True
        child = half.lineages.grow(namespace(salt), prompt(1), claim, 64, lineage)
        child.confirmed = True
        for seed in (2, 3):
            half.hot.note([lineage], np.concatenate([prompt(1), prompt(seed, 20)]), 200 if seed == 3 else 0, None)
    assert half.purge("a") == TenantReport(lineages=2, openings=1)
    assert list(half.lineages.behind(namespace(), prompt(1), 64)) == []
    assert len(list(half.lineages.behind(namespace("b"), prompt(1), 64))) == 1
    opening = half.hot.next()
    assert opening is not None
    assert opening.namespace == namespace("b").digest
    half.hot.done(opening)
    assert half.hot.next() is None


def test_a_byte_search_finds_nothing_in_memory_or_audit(tmp_path: Path) -> None:
    half = Half(Settings(min_span_tokens=16, lookup_budget_ms=600_000.0, audit_path=str(tmp_path / "audit.jsonl")))
    # Prompts of no other test's: what others freed may lie in memory that was never written to.
    secret, open_text = prompt(7001), prompt(7002)
    half.durable(half.capture(namespace(), secret))
    half.durable(half.capture(namespace("b"), open_text))
    half.capture(namespace(), prompt(7003))
    half.keeper.recovered({0: [(namespace().digest, "left", prompt(7004), 1.7e9)]})
    assert half.finds(namespace(), secret)
    half.lives.clear()
    markers = [Marker(prompt(seed)[20:60].tolist()) for seed in (7001, 7003, 7004)]
    assert all(found_in_memory(half, marker) for marker in markers), "or the search finds nothing"
    report = half.purge("a")
    assert (report.donors, report.captures) == (2, 1)
    assert [found_in_memory(half, marker) for marker in markers] == [[], [], []]
    assert found_in_memory(half, Marker(open_text[20:60].tolist()))
    half.provider.close()
    assert all(found_in_files(tmp_path, marker) == [] for marker in markers)
    purged = [record for record in read_audit(tmp_path / "audit.jsonl").records if record["event"] == "tenant_purged"]
    assert [(each["tenant"], each["donors"], each["captures"]) for each in purged] == [(tenant_of_salt("a"), 2, 1)]


class PurgeMachine(RuleBasedStateMachine):
    """Captures, their ends and purges in any order: what can be found is what a purge has not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.half = Half()
        self.coming: dict[int, RequestLife] = {}
        self.expected: dict[int, str | None] = {}
        self.gone: dict[int, str | None] = {}
        self.seeds = 0

    @rule(salt=st.sampled_from(SALTS))
    def capture(self, salt: str | None) -> None:
        self.seeds += 1
        self.coming[self.seeds] = self.half.capture(namespace(salt), prompt(self.seeds))

    @precondition(lambda self: self.coming)
    @rule(data=st.data())
    def become_durable(self, data: st.DataObject) -> None:
        seed = data.draw(st.sampled_from(sorted(self.coming)))
        life = self.coming.pop(seed)
        self.half.durable(life)
        salt = next(each for each in SALTS if namespace(each) == life.namespace)
        (self.gone if life.purged else self.expected)[seed] = salt

    @rule(salt=st.sampled_from(SALTS))
    def purge(self, salt: str | None) -> None:
        theirs = [seed for seed, owner in self.expected.items() if owner == salt]
        under_way = [life for life in self.coming.values() if life.namespace == namespace(salt) and not life.purged]
        found = self.half.purge(salt)
        assert (found.donors, found.captures) == (len(theirs), len(under_way))
        for seed in theirs:
            self.gone[seed] = self.expected.pop(seed)

    @invariant()
    def what_is_found_is_what_is_left(self) -> None:
        for seed, salt in list(self.expected.items())[-3:]:
            assert self.half.finds(namespace(salt), prompt(seed))
        for seed, salt in list(self.gone.items())[-3:]:
            assert not self.half.finds(namespace(salt), prompt(seed))
        self.half.provider.check_integrity()
        self.half.keeper.captures.check_integrity()

    def teardown(self) -> None:
        self.half.provider.close()


TestPurges = PurgeMachine.TestCase
TestPurges.settings = hypothesis_settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_a_request_that_waited_through_a_purge_is_purged_and_one_that_came_behind_it_is_not() -> None:
    half, clock = Half(), iter([10.0])
    tenants = Tenants(half.provider, lambda: (), (), now=lambda: next(clock))
    tenants.begin_purge(tenant_of_salt("a"))
    for salt, came_at, purged in (("a", 9.0, True), ("a", 11.0, False), ("b", 9.0, False)):
        life = RequestLife(None, "r", namespace(salt), prompt(1))
        tenants.meet(life, came_at)
        assert life.purged is purged
        assert life.is_open is not purged
