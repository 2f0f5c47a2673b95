"""A donor can be found when every rank holds it, and is forgotten everywhere when one does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from semblend_core import (
    DeclineReason,
    EarlierDonors,
    LookupRequest,
    Namespace,
    SemanticLookupProvider,
    Settings,
    TokenIds,
    create_provider,
    donor_id_of,
    open_audit,
    read_audit,
)
from semblend_vllm.donor_books import DonorBooks

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
    made = create_provider(Settings(lookup_budget_ms=10_000.0), engine="test")
    yield made
    made.close()


def found(provider: SemanticLookupProvider, tokens: TokenIds, namespace: Namespace = NAMESPACE) -> bool:
    asked = np.concatenate([prompt(999, 50), tokens])
    return provider.lookup(LookupRequest("r", namespace, asked, 0)).plan is not None


def test_a_donor_is_findable_when_the_last_rank_holds_it(provider: SemanticLookupProvider, tmp_path: Path) -> None:
    audit = open_audit(Settings(audit_path=str(tmp_path / "audit.jsonl")), "test")
    books, tokens = DonorBooks(provider, ranks=2, audit=audit), prompt(1)
    donor_id = books.begin_capture(NAMESPACE, tokens, "the request")
    assert donor_id is not None
    donor = (NAMESPACE.digest, donor_id)
    for ranks in ([0], [0]):
        books.durable(donor, frozenset(ranks))
        assert not found(provider, tokens)
    generation = books.generation
    books.durable(donor, frozenset([1]))
    assert found(provider, tokens)
    assert books.generation > generation
    books.check_integrity()
    audit.close()
    (captured,) = read_audit(tmp_path / "audit.jsonl").records
    assert (captured["event"], captured["request_id"], captured["tokens"]) == ("donor_captured", "the request", 400)


def test_a_prompt_is_captured_once(provider: SemanticLookupProvider) -> None:
    books = DonorBooks(provider, ranks=1)
    assert books.begin_capture(NAMESPACE, prompt(1)) is not None
    assert books.begin_capture(NAMESPACE, prompt(1)) is None
    assert books.begin_capture(OTHER, prompt(1)) is not None, "another tenant's donors are not this one's"


def test_one_that_was_not_kept_may_be_captured_again(provider: SemanticLookupProvider) -> None:
    books, tokens = DonorBooks(provider, ranks=1), prompt(1)
    donor_id = books.begin_capture(NAMESPACE, tokens)
    books.lost((NAMESPACE.digest, str(donor_id)), DeclineReason.CAPTURE_FAILED)
    assert books.begin_capture(NAMESPACE, tokens) == donor_id
    books.check_integrity()


def test_what_one_rank_lost_the_others_forget(provider: SemanticLookupProvider) -> None:
    books, tokens = DonorBooks(provider, ranks=2), prompt(1)
    donor_id = str(books.begin_capture(NAMESPACE, tokens))
    books.durable((NAMESPACE.digest, donor_id), frozenset([0, 1]))
    assert books.why_lost(NAMESPACE, donor_id) is None
    books.lost((NAMESPACE.digest, donor_id), DeclineReason.DONOR_CORRUPT)
    assert not found(provider, tokens)
    assert books.why_lost(NAMESPACE, donor_id) is DeclineReason.DONOR_CORRUPT
    assert books.take_forgotten() == [(NAMESPACE, donor_id)]
    assert books.take_forgotten() == []


def test_a_donor_that_is_refused_is_not_kept_for_nothing(provider: SemanticLookupProvider) -> None:
    books, short = DonorBooks(provider, ranks=1), prompt(1, tokens=20)
    donor_id = str(books.begin_capture(NAMESPACE, short))
    books.durable((NAMESPACE.digest, donor_id), frozenset([0]))
    assert books.take_forgotten() == [(NAMESPACE, donor_id)]
    assert not books.knows(NAMESPACE, donor_id)


def test_one_that_made_room_for_another_is_not_kept_and_may_come_again() -> None:
    provider = create_provider(Settings(max_donors=1, lookup_budget_ms=10_000.0), engine="test")
    books, first, second = DonorBooks(provider, ranks=1), prompt(1), prompt(2)
    names = []
    for tokens in (first, second):
        names.append(str(books.begin_capture(NAMESPACE, tokens)))
        books.durable((NAMESPACE.digest, names[-1]), frozenset([0]))
    assert books.take_forgotten() == [(NAMESPACE, names[0])]
    assert books.begin_capture(NAMESPACE, second) is None
    assert books.begin_capture(NAMESPACE, first) == names[0]
    provider.close()


def test_donors_of_an_earlier_process_wait_for_their_tenant(provider: SemanticLookupProvider) -> None:
    books = DonorBooks(provider, ranks=1)
    left = [prompt(seed) for seed in range(EarlierDonors.AT_FIRST + EarlierDonors.AT_A_TIME)]
    books.recovered((NAMESPACE.digest, donor_id_of(tokens), tokens) for tokens in left)
    books.seen(OTHER)
    books.offer_some()
    assert not any(found(provider, tokens) for tokens in left)
    books.seen(NAMESPACE)
    assert sum(found(provider, tokens) for tokens in left) == EarlierDonors.AT_FIRST
    assert found(provider, left[-1]), "the last used are named first"
    books.offer_some()
    assert all(found(provider, tokens) for tokens in left)
    assert not found(provider, left[0], OTHER)


def test_a_reset_forgets_everything(provider: SemanticLookupProvider) -> None:
    books, tokens = DonorBooks(provider, ranks=1), prompt(1)
    donor_id = str(books.begin_capture(NAMESPACE, tokens))
    books.durable((NAMESPACE.digest, donor_id), frozenset([0]))
    books.recovered([(OTHER.digest, "x", tokens)])
    books.forget_all()
    books.seen(OTHER)
    books.offer_some()
    assert not found(provider, tokens)
    assert not found(provider, tokens, OTHER)
    assert books.take_forgotten() == [(NAMESPACE, donor_id)]
