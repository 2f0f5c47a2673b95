"""Nothing approximate is ever found under an exact key, and nobody finds what is another's."""

from __future__ import annotations

from typing import Any

import pytest

TEXT = " ".join(f"Shelf {n} holds {n * 7 % 50 + 3} books and was painted in {1900 + n}." for n in range(36))
DONOR = f"A list of shelves.\n\n{TEXT}\n\nQuestion: which is oldest?\nAnswer:"
RECIPIENT = f"System: answer with a number, and take it from the list.\n\n{TEXT}\n\nQuestion: how many?\nAnswer:"


@pytest.fixture
def salt(engine: Any, request: pytest.FixtureRequest) -> str:
    name = request.node.name
    engine.ask(DONOR, salt=name, tokens=1)
    engine.settle()
    return name


def materialized(engine: Any) -> int:
    return int(engine.stats().outcomes.get("materialized", 0))


def test_the_same_prompt_without_reuse_finds_its_true_prefix_only(engine: Any, salt: str) -> None:
    cold = engine.ask(RECIPIENT, salt=f"{salt}, cold", reuse="off")
    before = materialized(engine)
    engine.ask(RECIPIENT, salt=salt)
    assert materialized(engine) == before + 1
    probe = engine.ask(RECIPIENT, salt=salt, reuse="off")
    assert probe.cached_tokens == 0
    assert probe.text == cold.text


def test_another_tenant_finds_nothing(engine: Any, salt: str) -> None:
    before = materialized(engine)
    answer = engine.ask(RECIPIENT, salt=f"{salt}, another")
    assert answer.cached_tokens == 0
    assert materialized(engine) == before


def test_an_approximate_prompt_is_no_donor_beyond_its_exact_part(engine: Any, salt: str) -> None:
    donors = engine.stats().donors
    engine.ask(RECIPIENT, salt=salt)
    engine.settle()
    assert engine.stats().donors == donors


def test_a_request_may_refuse(engine: Any, salt: str) -> None:
    before = engine.stats()
    answer = engine.ask(RECIPIENT, salt=salt, reuse="off")
    assert answer.cached_tokens == 0
    assert engine.stats().lookups == before.lookups


def test_a_request_may_ask_for_discovery_only(engine: Any, salt: str) -> None:
    before = engine.stats().outcomes.get("discovery_only", 0)
    answer = engine.ask(RECIPIENT, salt=salt, reuse="discovery")
    assert answer.cached_tokens == 0
    assert engine.stats().outcomes["discovery_only"] == before + 1


def test_a_request_may_keep_itself_out_of_the_store(engine: Any) -> None:
    donors = engine.stats().donors
    engine.ask(DONOR, salt="unkept", reuse={"mode": "on", "capture": False}, tokens=1)
    engine.settle()
    assert engine.stats().donors == donors
