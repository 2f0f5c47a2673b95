"""Clients choose salts, ids and prompts. What is kept of them is bounded, in number and in length."""

from __future__ import annotations

from pathlib import Path

import pytest

from semblend_core import LookupRequest, Namespace, Outcome, OutcomeKind, Settings, create_provider, read_audit
from semblend_core.serving import DonorKeeper, Namespaces, RequestBook, RequestLife, SelfTest
from semblend_core.testing import BOUNDS_OF_BOOKS, held_by, passage
from semblend_core.testing.fuzzing import SURROGATES

SHARED = {"model": "m", "revision": "r", "tokenizer": "t", "dtype": "d", "kv_layout": "l", "block_size": 16}
LONG = 100_000


@pytest.fixture
def small_books(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every book is full soon."""
    for bound in BOUNDS_OF_BOOKS:
        monkeypatch.setattr(bound, 32)


@pytest.mark.usefixtures("small_books")
def test_a_flood_of_salts_that_are_used_once_leaves_nothing_behind() -> None:
    settings = Settings(max_donors=32, lookup_budget_ms=600_000.0)
    provider = create_provider(settings, engine="test")
    book, known = Namespaces(**SHARED), RequestBook(provider.report_outcome)
    keeper = DonorKeeper(provider, settings, SelfTest(0, lambda result: None))
    document = passage(1, 200)

    def serve(number: int) -> None:
        namespace = book.of(None, f"salt {number}")
        prompt = [*passage(number, 30), *document]
        life = RequestLife(None, f"request {number}", namespace, prompt)
        known.add(life)
        keeper.meet(namespace)
        provider.lookup(LookupRequest(life.request_id, namespace, life.token_ids))
        kept = keeper.decide(life)
        assert kept is not None
        assert kept.donor_id is not None
        keeper.durable((namespace.digest, kept.donor_id), frozenset({0}))
        keeper.take_forgotten()
        known.end(life)

    def flood(numbers: range) -> dict[str, int]:
        for number in numbers:
            serve(number)
        return dict(held_by(provider, book, known, keeper))

    before, after = flood(range(150)), flood(range(150, 400))
    assert {place: (before.get(place, 0), size) for place, size in after.items() if size > before.get(place, 0)} == {}
    assert (len(keeper.donors), provider.stats().donors) == (32, 32)
    keeper.donors.prefixes.check_integrity()
    provider.check_integrity()


def test_a_long_salt_is_kept_nowhere() -> None:
    book = Namespaces(**SHARED)
    for number in range(20):
        assert book.of(None, "s" * LONG + str(number)) is book.of(None, "s" * LONG + str(number))
    assert len({book.of(None, salt).digest for salt in (*SURROGATES, "", None)}) == len(SURROGATES) + 2
    assert sum(held_by(book).values()) < 1000


def test_a_long_request_id_is_kept_nowhere_and_still_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    provider = create_provider(Settings(audit_path=str(path)), engine="test")
    namespace = Namespace(**SHARED, adapter=None, salt=None)
    tokens = RequestLife(None, "r", namespace, passage(1, 200)).token_ids
    for number in range(20):
        request_id = "r" * LONG + str(number)
        provider.lookup(LookupRequest(request_id, namespace, tokens))
        for _ in range(2):
            provider.report_outcome(Outcome(request_id, OutcomeKind.COLD))
    assert provider.stats().outcomes == {OutcomeKind.COLD: 20}
    assert sum(held_by(provider).values()) < LONG
    provider.close()
    assert path.stat().st_size < LONG
    assert len({record["request_id"] for record in read_audit(path).records}) == 20
