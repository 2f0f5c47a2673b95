"""Prompts that were served, and how a new one finds them."""

import numpy as np
import pytest

from semblend_core import DeclineReason, Namespace, OutcomeKind, Settings, TokenIds, as_token_ids
from semblend_dynamo.placement import DonorBook, DonorKey, Landings


def tokens(seed: int, count: int) -> TokenIds:
    return as_token_ids(np.random.default_rng(seed).integers(0, 32_000, count))


def joined(*parts: TokenIds) -> TokenIds:
    return as_token_ids(np.concatenate(parts))


def namespace(salt: str | None = "tenant-a") -> Namespace:
    return Namespace(
        model="m", revision="1", tokenizer="t", dtype="any", kv_layout="any", block_size=16, adapter=None, salt=salt
    )


DOCUMENT = tokens(1, 600)


@pytest.fixture
def book() -> DonorBook:
    return DonorBook(Settings(lookup_budget_ms=600_000))


def test_a_reframed_prompt_finds_its_donor(book: DonorBook) -> None:
    book.add(namespace(), "donor", joined(tokens(2, 40), DOCUMENT))
    finding = book.find("r", namespace(), joined(tokens(3, 70), DOCUMENT, tokens(4, 20)))
    [piece] = finding.pieces
    assert (piece.target_start, piece.length, piece.donor_id, piece.donor_start) == (70, 600, "donor", 40)
    assert finding.reason is None
    book.report("r", placed=True)
    assert book.provider.stats().outcomes == {OutcomeKind.PLACEMENT: 1}
    assert book.provider.stats().confirmed_tokens == 0
    assert book.provider.stats().pinned_requests == 0


def test_one_tenant_never_finds_anothers_donor(book: DonorBook) -> None:
    book.add(namespace("tenant-a"), "donor", DOCUMENT)
    assert book.find("r", namespace("tenant-b"), DOCUMENT).reason is DeclineReason.NO_DONORS


def test_requests_without_a_tenant_share_nothing_unless_the_operator_says_so(book: DonorBook) -> None:
    assert not book.add(namespace(None), "donor", DOCUMENT).kept
    assert book.find("r", namespace(None), DOCUMENT).reason is DeclineReason.NO_SALT
    open_book = DonorBook(Settings(sharing="all", lookup_budget_ms=600_000))
    open_book.add(namespace(None), "donor", DOCUMENT)
    assert open_book.find("r", namespace(None), DOCUMENT).pieces


def test_a_later_donor_that_holds_the_same_is_found_beside_the_first(book: DonorBook) -> None:
    """It may lie on another worker."""
    book.add(namespace(), "first", joined(tokens(2, 40), DOCUMENT))
    second = joined(tokens(5, 90), DOCUMENT)
    finding = book.find("second", namespace(), second)
    book.add(namespace(), "second", second, finding)
    prompt = joined(tokens(6, 10), DOCUMENT)
    found = book.find("r", namespace(), prompt)
    assert set(found.donor_ids) == {"first", "second"}
    for piece in found.pieces:
        held = book.tokens(namespace(), piece.donor_id)
        assert held is not None
        assert np.array_equal(held[piece.donor_start : piece.donor_end], prompt[piece.target_start : piece.target_end])
    book.forget(DonorKey(namespace().digest, "first"))
    assert book.find("r2", namespace(), prompt).donor_ids == ("second",)
    book.check_integrity()


def test_whom_a_budget_costs_its_place_is_told() -> None:
    small = DonorBook(Settings(max_donors=2))
    for number in range(3):
        added = small.add(namespace(), f"donor-{number}", tokens(number, 200))
    assert added.evicted == (DonorKey(namespace().digest, "donor-0"),)
    assert [key.donor_id for key in small.known()] == ["donor-1", "donor-2"]
    small.check_integrity()


def test_forgotten_donors_are_not_found(book: DonorBook) -> None:
    book.add(namespace(), "donor", DOCUMENT)
    key = DonorKey(namespace().digest, "donor")
    assert book.known(namespace().salt_digest) == (key,)
    assert book.known(namespace("other").salt_digest) == ()
    assert book.forget(key)
    assert not book.forget(key)
    assert book.find("r", namespace(), DOCUMENT).reason is DeclineReason.NO_DONORS
    assert len(book) == 0


def test_landings_are_dropped_oldest_first_and_with_their_worker() -> None:
    landings: Landings[str] = Landings(1000)
    for number in range(3):
        landings.landed("n", f"donor-{number}", "w", 400)
    assert landings.held("n", "donor-0") == {}
    assert landings.held("n", "donor-2") == {"w": 400}
    landings.landed("n", "donor-2", "v", 400)
    landings.forget_worker("w")
    assert landings.held("n", "donor-2") == {"v": 400}
    landings.forget_donor("n", "donor-2")
    assert landings.held("n", "donor-2") == {}
