"""A tenant is purged in a running engine: nothing of it is found or kept, and others go on as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from semblend_core.testing import Marker, found_in_memory

TEXT = " ".join(f"Barrel {n} keeps {n * 19 % 61 + 4} litres and came from cellar {n * 5 % 23 + 1}." for n in range(30))
DONOR = f"A cellar book.\n\n{TEXT}\n\nQuestion: which is the largest?\nAnswer:"
RECIPIENT = f"System: one number only, from the book.\n\n{TEXT}\n\nQuestion: how many?\nAnswer:"


def keep(engine: Any, salt: str) -> None:
    engine.ask(DONOR, salt=salt, tokens=1)
    engine.settle()


def marker(engine: Any) -> Marker:
    """Tokens of the document, far inside."""
    return Marker(engine.llm.get_tokenizer().encode(DONOR)[100:160])


def test_nothing_is_left_of_the_tenant_and_nothing_is_taken_from_others(engine: Any) -> None:
    for salt in ("purged", "untouched"):
        keep(engine, salt)
        assert engine.ask(RECIPIENT, salt=salt).cached_tokens > 0
    engine.settle()
    held = engine.side.held_by("purged")
    assert held.donors == held.stored > 0
    assert held.lineages > 0
    assert held.bytes > 0
    theirs = replace(engine.side.held_by("untouched"), oldest_s=None)
    report = engine.side.purge("purged")
    assert (report.donors, report.bytes, report.lineages) == (held.donors, held.bytes, held.lineages)
    assert engine.side.held_by("purged").nothing
    assert replace(engine.side.held_by("untouched"), oldest_s=None) == theirs
    engine.empty_own_cache()
    assert engine.ask(RECIPIENT, salt="purged", reuse={"capture": False}).cached_tokens == 0
    assert engine.ask(RECIPIENT, salt="untouched").cached_tokens > 0
    engine.check_integrity()


def test_a_byte_search_of_both_halves_finds_nothing(engine: Any) -> None:
    for salt in ("untouched", "purged"):
        engine.side.purge(salt)
    keep(engine, "searched")
    keeper = engine.side.keeper
    index, stored = engine.side.provider.registry, engine.worker._store._holdings
    assert found_in_memory(index, marker(engine))
    assert found_in_memory(stored, marker(engine))
    engine.side.purge("searched")
    books = (
        keeper.captures,
        keeper._earlier,
        keeper.donors._donors,
        engine.side.lineages.book,
        engine.side.hot._waiting,
    )
    for held in (index, stored, *books):
        assert found_in_memory(held, marker(engine)) == []


@pytest.mark.parametrize("when", ["before its step", "in its step", "behind its step"])
def test_a_request_under_way_leaves_nothing(engine: Any, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Whether its capture is not ordered yet, ordered, or being copied."""
    target, name = {
        "before its step": (engine.side, "claim"),
        "in its step": (engine.core.model_executor, "execute_model"),
        "behind its step": (engine.side, "finished"),
    }[when]
    original: Callable[..., Any] = getattr(target, name)
    purges: list[Any] = []

    def purged_meanwhile(*args: Any, **kwargs: Any) -> Any:
        if not purges:
            purges.append(engine.side.purge("under way"))
        return original(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(target, name, purged_meanwhile)
        engine.ask(DONOR, salt="under way", tokens=2)
    assert len(purges) == 1
    engine.settle()
    assert engine.side.held_by("under way").nothing
    engine.empty_own_cache()
    assert engine.ask(RECIPIENT, salt="under way", reuse={"capture": False}).cached_tokens == 0
    keep(engine, "under way")
    assert engine.side.held_by("under way").donors == 1, "who comes later is served as ever"
    engine.check_integrity()
