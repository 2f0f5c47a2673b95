"""Whatever goes wrong ends in an ordinary prefill, a counted reason, and an engine that lives on."""

from __future__ import annotations

from typing import Any

import pytest

TEXT = " ".join(f"Barrel {n} came from farm {n * 11 % 37} and weighed {n * 3 % 90 + 10} pounds." for n in range(36))
DONOR = f"An inventory.\n\n{TEXT}\n\nQuestion: which is the heaviest?\nAnswer:"
RECIPIENT = f"System: reply in one word, from the inventory below.\n\n{TEXT}\n\nQuestion: what?\nAnswer:"


@pytest.fixture
def cold(engine: Any) -> Any:
    return engine.ask(RECIPIENT, salt="faults, cold", reuse="off")


def with_donor(engine: Any, salt: str) -> None:
    engine.ask(DONOR, salt=salt, tokens=1)
    engine.settle()


def declined(engine: Any, reason: str) -> int:
    return int(engine.stats().declines.get(reason, 0))


def test_a_donor_that_is_gone_when_it_is_loaded(engine: Any, cold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_donor(engine, "gone")
    before = declined(engine, "donor_evicted")
    with monkeypatch.context() as patched:
        patched.setattr(engine.worker._store, "acquire", lambda *_: None)
        answer = engine.ask(RECIPIENT, salt="gone")
    assert answer.text == cold.text
    assert declined(engine, "donor_evicted") == before + 1
    engine.check_integrity()


def test_a_load_that_fails(engine: Any, cold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_donor(engine, "broken load")
    before = declined(engine, "load_failed")

    def fail(*_: Any) -> None:
        raise OSError("the store is unreadable")

    with monkeypatch.context() as patched:
        patched.setattr(engine.worker._memory, "scatter", fail)
        answer = engine.ask(RECIPIENT, salt="broken load")
    assert answer.text == cold.text
    assert declined(engine, "load_failed") == before + 1
    engine.check_integrity()


def test_a_capture_that_fails(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    donors = engine.stats().donors
    with monkeypatch.context() as patched:
        patched.setattr(engine.worker._memory, "gather", fail)
        answer = engine.ask(DONOR, salt="broken capture", tokens=2)
        engine.settle()
    assert len(answer.tokens) == 2
    assert engine.stats().donors == donors
    engine.check_integrity()


def test_a_lookup_that_fails(engine: Any, cold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_donor(engine, "broken lookup")

    def fail(*_: Any) -> None:
        raise ValueError("no")

    with monkeypatch.context() as patched:
        patched.setattr(engine.side.provider, "lookup", fail)
        answer = engine.ask(RECIPIENT, salt="broken lookup")
    assert answer.text == cold.text
    engine.check_integrity()


def test_the_engine_reuses_again_afterwards(engine: Any) -> None:
    with_donor(engine, "afterwards")
    before = engine.stats().confirmed_tokens
    engine.ask(RECIPIENT, salt="afterwards")
    assert engine.stats().confirmed_tokens > before
