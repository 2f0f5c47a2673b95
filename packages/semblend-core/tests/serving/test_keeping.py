"""A donor can be found when every rank holds it, and is forgotten everywhere when one does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from semblend_core import (
    AuditSink,
    DeclineReason,
    LookupRequest,
    Namespace,
    Outcome,
    OutcomeKind,
    SelfTestResult,
    SelfTestState,
    SemanticLookupProvider,
    Settings,
    TokenIds,
    create_provider,
    donor_id_of,
    open_audit,
    read_audit,
)
from semblend_core.serving import DonorKeeper, Finding, RequestLife, SelfTest, Wish
from semblend_core.serving.earlier import EarlierDonors

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="float32", kv_layout="vllm", block_size=16, adapter=None, salt="a"
)
OTHER = Namespace(
    model="m", revision="r", tokenizer="t", dtype="float32", kv_layout="vllm", block_size=16, adapter=None, salt="b"
)


def prompt(seed: int, tokens: int = 400) -> TokenIds:
    ids = np.random.default_rng(seed).integers(0, 50_000, tokens).astype(np.int32)
    ids.flags.writeable = False
    return ids


@pytest.fixture
def provider() -> Iterator[SemanticLookupProvider]:
    made = create_provider(Settings(lookup_budget_ms=600_000.0), engine="test")
    yield made
    made.close()


def keeper_of(provider: SemanticLookupProvider, ranks: int = 1, audit: AuditSink | None = None) -> DonorKeeper:
    self_test = SelfTest(ranks, provider.note_self_test)
    self_test.hear({rank: SelfTestResult(SelfTestState.PASSED) for rank in range(ranks)})
    return DonorKeeper(provider, Settings(min_span_tokens=16, max_donors=100), self_test, ranks, audit)


def captured(keeper: DonorKeeper, tokens: TokenIds, namespace: Namespace = NAMESPACE) -> str | None:
    """The id of the donor that a request with this prompt leaves; None where it leaves none."""
    kept = keeper.decide(RequestLife(None, "the request", namespace, tokens))
    return None if kept is None else kept.donor_id


def found(provider: SemanticLookupProvider, tokens: TokenIds, namespace: Namespace = NAMESPACE) -> bool:
    asked = np.concatenate([prompt(999, 50), tokens])
    return provider.lookup(LookupRequest("r", namespace, asked, 0)).plan is not None


def test_a_donor_is_findable_when_the_last_rank_holds_it(provider: SemanticLookupProvider, tmp_path: Path) -> None:
    audit = open_audit(Settings(audit_path=str(tmp_path / "audit.jsonl")), "test")
    keeper, tokens = keeper_of(provider, 2, audit), prompt(1)
    donor_id = captured(keeper, tokens)
    assert donor_id is not None
    donor = (NAMESPACE.digest, donor_id)
    for ranks in ([0], [0]):
        keeper.durable(donor, frozenset(ranks))
        assert not found(provider, tokens)
    generation = keeper.donors.generation
    keeper.durable(donor, frozenset([1]))
    assert found(provider, tokens)
    assert keeper.donors.generation > generation
    keeper.captures.check_integrity()
    audit.close()
    (record,) = read_audit(tmp_path / "audit.jsonl").records
    assert (record["event"], record["request_id"], record["tokens"]) == ("donor_captured", "the request", 400)


def test_a_prompt_is_captured_once(provider: SemanticLookupProvider) -> None:
    keeper = keeper_of(provider, 1)
    assert captured(keeper, prompt(1)) is not None
    assert captured(keeper, prompt(1)) is None
    assert captured(keeper, prompt(1), OTHER) is not None, "another tenant's donors are not this one's"


def keep(keeper: DonorKeeper, tokens: TokenIds) -> str | None:
    """Capture a prompt and let it become durable: the donor's id, None where it is not captured."""
    donor_id = captured(keeper, tokens)
    if donor_id is not None:
        keeper.durable((NAMESPACE.digest, donor_id), frozenset([0]))
    return donor_id


def unwanted(provider: SemanticLookupProvider) -> dict[DeclineReason, int]:
    return dict(provider.stats().declines)


def test_what_a_donor_holds_but_for_less_than_a_span_is_not_captured_again(provider: SemanticLookupProvider) -> None:
    keeper, document = keeper_of(provider), prompt(1)
    assert captured(keeper, document) is not None
    for asked in (document[:200], document, np.concatenate([document, prompt(2, 15)])):
        assert captured(keeper, asked) is None, "whether the donor is durable or on its way"
    assert unwanted(provider) == {DeclineReason.DONOR_COVERED: 3}
    assert captured(keeper, document[1:]) is not None, "the same text at other places is not the same KV"


def test_a_donor_that_another_one_begins_with_goes_when_that_is_durable(provider: SemanticLookupProvider) -> None:
    keeper, document = keeper_of(provider), prompt(1)
    longer = np.concatenate([document, prompt(2, 300)])
    short_id, other_id = keep(keeper, document), keep(keeper, np.concatenate([document[:390], prompt(3, 100)]))
    long_id = captured(keeper, longer)
    assert (NAMESPACE.digest, str(short_id)) in keeper.donors
    keeper.durable((NAMESPACE.digest, str(long_id)), frozenset([0]))
    assert keeper.take_forgotten() == [(NAMESPACE, short_id)]
    assert (NAMESPACE.digest, str(short_id)) not in keeper.donors
    assert (NAMESPACE.digest, str(other_id)) in keeper.donors
    assert found(provider, document)
    assert captured(keeper, document) is None
    keeper.donors.prefixes.check_integrity()


def test_a_replaced_donor_stays_while_a_plan_needs_it(provider: SemanticLookupProvider) -> None:
    keeper, document = keeper_of(provider), prompt(1)
    short_id = keep(keeper, document)
    asked = np.concatenate([prompt(999, 50), document])
    assert provider.lookup(LookupRequest("under way", NAMESPACE, asked, 0)).plan is not None
    keep(keeper, np.concatenate([document, prompt(2, 300)]))
    assert keeper.take_forgotten() == []
    provider.report_outcome(Outcome("under way", OutcomeKind.COLD))
    keep(keeper, prompt(3))
    assert keeper.take_forgotten() == [(NAMESPACE, short_id)], "it goes with the next donor that comes"


def test_a_prompt_that_adds_little_to_a_donor_is_captured_when_it_is_asked_for_twice(
    provider: SemanticLookupProvider,
) -> None:
    keeper = keeper_of(provider)
    keep(keeper, prompt(1, 1000))
    longer = np.concatenate([prompt(1, 1000), prompt(2, 80)])
    assert captured(keeper, longer) is None
    assert unwanted(provider) == {DeclineReason.DONOR_ASKED_ONCE: 1}
    assert captured(keeper, np.concatenate([prompt(1, 1000), prompt(3, 80)])) is None, (
        "another question is not the same"
    )
    assert captured(keeper, longer) is not None
    wanted = RequestLife(
        None, "r", NAMESPACE, np.concatenate([prompt(1, 1000), prompt(4, 80)]), Wish("on", capture=True)
    )
    assert keeper.decide(wanted) is not None, "who asks for it gets it"


@pytest.mark.parametrize("covered", [1000, 1070])
def test_what_donors_hold_in_other_places_is_captured_when_it_is_asked_for_twice(
    provider: SemanticLookupProvider, covered: int
) -> None:
    """As after a lookup whose plan would not have paid, or a glimpse that saw nothing new."""
    keeper = keeper_of(provider)
    moved = np.concatenate([prompt(2, 40), prompt(1, 1000), prompt(3, 40)])

    def decided(approximate_from: int | None = None, capture: bool | None = None) -> str | None:
        life = RequestLife(None, "r", NAMESPACE, moved, Wish("on", capture), approximate_from=approximate_from)
        life.finding = Finding(False, DeclineReason.DOES_NOT_PAY, covered_tokens=covered)
        kept = keeper.decide(life)
        return None if kept is None else kept.donor_id

    assert decided(approximate_from=40) == donor_id_of(moved[:40]), "nobody holds what it computed itself"
    assert decided() is None
    assert unwanted(provider) == {DeclineReason.DONOR_ASKED_ONCE: 1}
    assert decided() == donor_id_of(moved)
    keeper.forget_all()
    assert decided(capture=True) == donor_id_of(moved), "who asks for it gets it"


def test_a_conversation_keeps_itself_about_once(provider: SemanticLookupProvider) -> None:
    keeper, chat, copied = keeper_of(provider), prompt(1, 1000), 0
    for turn in range(10):
        chat = np.concatenate([chat, prompt(100 + turn, 30)])
        if keep(keeper, chat) is not None:
            copied += chat.size
        chat = np.concatenate([chat, prompt(200 + turn, 50)])
    assert len(keeper.donors) == 1
    assert keeper.donors.prefixes.held(NAMESPACE.digest, chat) >= 0.9 * chat.size - 50
    assert copied < 5 * chat.size


def test_one_that_was_not_kept_may_be_captured_again(provider: SemanticLookupProvider) -> None:
    keeper, tokens = keeper_of(provider, 1), prompt(1)
    donor_id = captured(keeper, tokens)
    keeper.lost((NAMESPACE.digest, str(donor_id)), DeclineReason.CAPTURE_FAILED)
    assert captured(keeper, tokens) == donor_id
    keeper.captures.check_integrity()


def test_what_one_rank_lost_the_others_forget(provider: SemanticLookupProvider) -> None:
    keeper, tokens = keeper_of(provider, 2), prompt(1)
    donor_id = str(captured(keeper, tokens))
    keeper.durable((NAMESPACE.digest, donor_id), frozenset([0, 1]))
    assert keeper.donors.why_lost(NAMESPACE, donor_id) is None
    keeper.lost((NAMESPACE.digest, donor_id), DeclineReason.DONOR_CORRUPT)
    assert not found(provider, tokens)
    assert keeper.donors.why_lost(NAMESPACE, donor_id) is DeclineReason.DONOR_CORRUPT
    assert keeper.take_forgotten() == [(NAMESPACE, donor_id)]
    assert keeper.take_forgotten() == []


def test_what_one_rank_could_not_capture_the_others_forget(provider: SemanticLookupProvider) -> None:
    keeper, tokens = keeper_of(provider, 2), prompt(1)
    donor_id = str(captured(keeper, tokens))
    keeper.durable((NAMESPACE.digest, donor_id), frozenset([1]))
    keeper.lost((NAMESPACE.digest, donor_id), DeclineReason.CAPTURE_FAILED)
    assert keeper.take_forgotten() == [(NAMESPACE, donor_id)]


def test_one_that_was_lost_before_its_tenant_came_is_not_found(provider: SemanticLookupProvider) -> None:
    keeper, tokens = keeper_of(provider, 1), prompt(1)
    keeper.recovered({0: [(NAMESPACE.digest, donor_id_of(tokens), tokens, 1.7e9)]})
    keeper.lost((NAMESPACE.digest, donor_id_of(tokens)), DeclineReason.DONOR_EVICTED)
    keeper.meet(NAMESPACE)
    assert not found(provider, tokens)


def test_a_donor_that_is_refused_is_not_kept_for_nothing(provider: SemanticLookupProvider) -> None:
    keeper, short = keeper_of(provider, 1), prompt(1, tokens=20)
    donor_id = str(captured(keeper, short))
    keeper.durable((NAMESPACE.digest, donor_id), frozenset([0]))
    assert keeper.take_forgotten() == [(NAMESPACE, donor_id)]
    assert (NAMESPACE.digest, donor_id) not in keeper.donors


def test_one_that_made_room_for_another_is_not_kept_and_may_come_again() -> None:
    provider = create_provider(Settings(max_donors=1, lookup_budget_ms=600_000.0), engine="test")
    keeper, first, second = keeper_of(provider, 1), prompt(1), prompt(2)
    names = []
    for tokens in (first, second):
        names.append(str(captured(keeper, tokens)))
        keeper.durable((NAMESPACE.digest, names[-1]), frozenset([0]))
    assert keeper.take_forgotten() == [(NAMESPACE, names[0])]
    assert captured(keeper, second) is None
    assert captured(keeper, first) == names[0]
    provider.close()


def test_donors_of_an_earlier_process_wait_for_their_tenant(provider: SemanticLookupProvider) -> None:
    keeper = keeper_of(provider, 1)
    left = [prompt(seed) for seed in range(EarlierDonors.AT_FIRST + EarlierDonors.AT_A_TIME)]
    keeper.recovered({0: [(NAMESPACE.digest, donor_id_of(tokens), tokens, 1.7e9) for tokens in left]})
    keeper.meet(OTHER)
    keeper.offer_some()
    assert not any(found(provider, tokens) for tokens in left)
    keeper.meet(NAMESPACE)
    assert sum(found(provider, tokens) for tokens in left) == EarlierDonors.AT_FIRST
    assert found(provider, left[-1]), "the last used are named first"
    keeper.offer_some()
    assert all(found(provider, tokens) for tokens in left)
    assert not found(provider, left[0], OTHER)


def left_of(*prompts: TokenIds) -> list[tuple[str, str, TokenIds, float]]:
    return [(NAMESPACE.digest, donor_id_of(tokens), tokens, 1.7e9) for tokens in prompts]


def test_what_an_earlier_process_left_is_offered_where_all_ranks_found_their_part(
    provider: SemanticLookupProvider,
) -> None:
    keeper, whole, torn, elsewhere = keeper_of(provider, 2), prompt(1), prompt(2), prompt(3)
    keeper.recovered({0: left_of(whole, torn)})
    keeper.meet(NAMESPACE)
    assert not found(provider, whole), "the other rank is still looking"
    keeper.recovered({1: left_of(elsewhere, whole)})
    keeper.meet(NAMESPACE)
    assert [found(provider, each) for each in (whole, torn, elsewhere)] == [True, False, False]


def test_what_one_rank_lost_while_another_was_looking_is_not_offered(provider: SemanticLookupProvider) -> None:
    keeper, lost, kept = keeper_of(provider, 2), prompt(1), prompt(2)
    keeper.recovered({0: left_of(lost, kept)})
    keeper.lost((NAMESPACE.digest, donor_id_of(lost)), DeclineReason.DONOR_CORRUPT)
    keeper.recovered({1: left_of(lost, kept)})
    keeper.meet(NAMESPACE)
    assert [found(provider, each) for each in (lost, kept)] == [False, True]


@pytest.mark.parametrize("forget", [DonorKeeper.forget_all, lambda keeper: keeper.forget_tenant(NAMESPACE.salt_digest)])
def test_what_is_forgotten_while_a_rank_is_looking_stays_forgotten(
    provider: SemanticLookupProvider, forget: Callable[[DonorKeeper], object]
) -> None:
    keeper, tokens = keeper_of(provider, 2), prompt(1)
    keeper.recovered({0: left_of(tokens)})
    forget(keeper)
    keeper.recovered({1: left_of(tokens)})
    keeper.meet(NAMESPACE)
    assert not found(provider, tokens)


def test_prompts_are_read_for_the_self_test_until_it_is_over(provider: SemanticLookupProvider) -> None:
    self_test = SelfTest(1, provider.note_self_test)
    keeper = DonorKeeper(provider, Settings(), self_test)
    unwanted = Wish("on", capture=False)

    kept = keeper.decide(RequestLife(None, "r", NAMESPACE, prompt(1), unwanted))
    assert kept is not None
    assert kept.donor_id is None
    self_test.hear({0: SelfTestResult(SelfTestState.PASSED)})
    assert keeper.decide(RequestLife(None, "r", NAMESPACE, prompt(1), unwanted)) is None


def test_of_a_prompt_served_approximately_the_exact_beginning_is_kept(provider: SemanticLookupProvider) -> None:
    keeper, tokens = keeper_of(provider), prompt(1)
    for exact, expected in ((200, 200), (10, None)):
        life = RequestLife(None, "r", NAMESPACE, tokens, approximate_from=exact)
        kept = keeper.decide(life)
        assert (None if kept is None else kept.token_ids.size) == expected
        assert keeper.decide(life) is None, "it is decided once"


def test_a_reset_forgets_everything(provider: SemanticLookupProvider) -> None:
    keeper, tokens = keeper_of(provider, 1), prompt(1)
    donor_id = str(captured(keeper, tokens))
    keeper.durable((NAMESPACE.digest, donor_id), frozenset([0]))
    keeper.recovered({0: [(OTHER.digest, "x", tokens, 1.7e9)]})
    keeper.forget_all()
    keeper.meet(OTHER)
    keeper.offer_some()
    assert not found(provider, tokens)
    assert not found(provider, tokens, OTHER)
    assert keeper.take_forgotten() == [(NAMESPACE, donor_id)]


def test_a_donor_is_kept_with_what_it_takes_to_compute_it() -> None:
    provider = create_provider(Settings(eviction="gdsf", max_donors=2, lookup_budget_ms=600_000), engine="test")
    self_test = SelfTest(1, provider.note_self_test)
    self_test.hear({0: SelfTestResult(SelfTestState.PASSED)})
    prices = iter([80.0, 80.0, 2.0, 2.0, 80.0, 80.0])  # When it is decided to keep one, and when it can be found.
    keeper = DonorKeeper(provider, Settings(), self_test, price=lambda tokens: next(prices))
    for seed, expected in ((1, 80.0), (2, 2.0), (3, 80.0)):
        kept = keeper.decide(RequestLife(None, "r", NAMESPACE, prompt(seed)))
        assert kept is not None
        assert kept.saved_ms == expected
        keeper.durable((NAMESPACE.digest, str(kept.donor_id)), frozenset([0]))
    assert [found(provider, prompt(seed)) for seed in (1, 2, 3)] == [True, False, True], "the cheap one went"
    provider.close()


def test_the_record_says_why_a_donor_went(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    provider = create_provider(Settings(audit_path=str(path)), engine="test")
    keeper = keeper_of(provider)
    short, long = prompt(1, 200), prompt(1, 400)
    names = {}
    for case, tokens in {"replaced": short, "by": long, "store": prompt(2), "lost": prompt(3)}.items():
        names[case] = (NAMESPACE.digest, str(captured(keeper, tokens)))
        keeper.durable(names[case], frozenset([0]))
    keeper.lost(names["store"], DeclineReason.DONOR_EVICTED)
    keeper.lost(names["lost"], DeclineReason.DONOR_CORRUPT)
    keeper.forget_all()
    assert provider.stats().evicted_donors == 1, "for want of room"
    provider.close()
    causes = [record["cause"] for record in read_audit(path).records if record["event"] == "evicted"]
    assert causes == ["replaced", "store", "lost", "forgotten"]


def test_of_donors_that_begin_alike_the_older_are_worth_what_they_go_on_with() -> None:
    """Questions about one document after the other: with room for few, each document keeps its newest donor."""
    kept = {}
    for eviction in ("lru", "priced_lru", "cost_aware"):
        provider = create_provider(Settings(eviction=eviction, max_donors=3, lookup_budget_ms=600_000.0), engine="test")
        keeper = keeper_of(provider)
        document, other = prompt(1), prompt(2)
        asked = [np.concatenate([text, prompt(10 + n, 100)]) for n, text in enumerate((other, *[document] * 3))]
        for tokens in asked:
            tokens.flags.writeable = False
            keeper.durable((NAMESPACE.digest, str(captured(keeper, tokens))), frozenset([0]))
        copies = keeper.take_copied()
        assert copies[0] == (NAMESPACE, donor_id_of(asked[1]), 400), "as many as the next one begins with"
        assert copies[-1] == (NAMESPACE, donor_id_of(asked[2]), 400)
        assert keeper.take_copied() == []
        kept[eviction] = found(provider, other)
        provider.close()
    assert kept == {"lru": False, "priced_lru": True, "cost_aware": True}
