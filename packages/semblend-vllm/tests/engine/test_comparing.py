"""A real model's answers are compared with cold ones, and a broken correction does not stay in service."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semblend_core.recompute import MeanShift
from semblend_vllm.scheduler import long_claims, orders

WORDS = "harbour archive orchard theatre market bakery ferry sold painted lost measured opened rebuilt drew"


@pytest.fixture
def comparing(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The guard of the engine, which compares everything that it may."""
    guard = engine.side.guard
    heard: Counter[str] = Counter()
    agreements: list[float] = []
    monkeypatch.setattr(guard, "_settings", replace(guard._settings, quality_share=1.0))
    monkeypatch.setattr(guard, "_controller", type(guard._controller)(0.9))
    monkeypatch.setattr(guard.news, "count", lambda result: heard.update([result]))
    monkeypatch.setattr(guard.news, "compared", lambda kind, agreement, kl: agreements.append(agreement))
    guard.heard, guard.agreements = heard, agreements
    yield guard
    be_idle(engine)
    guard.clear()


def be_idle(engine: Any) -> None:
    while engine.scheduler.has_requests():
        engine.llm.llm_engine.step()


def passages(number: int) -> list[str]:
    source = random.Random(number)
    return [" ".join(source.choice(WORDS.split()) for _ in range(90)) + "." for _ in range(4)]


def ask_about(engine: Any, number: int) -> Any:
    """Four passages of another prompt, in another order."""
    parts, salt = passages(number), f"comparing-{number}"
    engine.ask("Notes.\n\n" + "\n\n".join(parts) + "\n\nSummary:", salt=salt, tokens=1, reuse={"capture": True})
    engine.settle()
    engine.empty_own_cache()
    moved = "\n\n".join(f"Note {at}: {parts[at]}" for at in (2, 0, 3, 1))
    return engine.ask(f"Read this.\n\n{moved}\n\nQuestion: what was sold?\nAnswer:", salt=salt)


def test_an_answer_is_compared_while_nobody_waits(engine: Any, comparing: Any) -> None:
    before = engine.stats()
    answer = ask_about(engine, 0)
    assert answer.cached_tokens > 150
    be_idle(engine)
    assert comparing.heard == {"compared": 1}
    assert 0 <= comparing.agreements[0] <= 1
    after = engine.stats()
    assert after.lookups == before.lookups + 2, "the donor's and the request's"
    assert after.background_tokens > before.background_tokens + 300
    engine.check_integrity()


def test_exact_reuse_agrees_with_itself(engine: Any, comparing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every reused token computed afresh, nothing is left to stray."""
    claim_for = engine.side.admission.seeker._claim_for

    def all_rows(life: Any, plan: Any) -> Any:
        claim = claim_for(life, plan)
        return replace(claim, rows=((claim.start, claim.end - 1),), correction=None)

    monkeypatch.setattr(engine.side.admission.seeker, "_claim_for", all_rows)
    ask_about(engine, 1)
    be_idle(engine)
    assert comparing.agreements == [1.0]


def test_a_broken_correction_is_noticed_and_taken_out_of_service(
    engine: Any, comparing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far stronger than it should be, and the other way round, as a few layers forgive much."""
    make = long_claims.corrected

    def broken(*arguments: Any) -> Any:
        order = make(*arguments)
        if order is not None:
            order.shift = replace(order.shift, strength=-20.0, value_strength=-20.0, learned=False)
        return order

    monkeypatch.setattr(MeanShift, "__post_init__", lambda self: None)  # It refuses such.
    for module in (long_claims, orders):
        monkeypatch.setattr(module, "corrected", broken)
    for number in range(2, 60):
        answer = ask_about(engine, number)
        be_idle(engine)
        if not answer.cached_tokens:
            break
    assert engine.stats().declines["quality_target"] >= 1
    assert comparing.heard["compared"] < 50
    engine.check_integrity()


def test_the_dashboards_metrics_of_vllm_exist() -> None:
    import vllm.v1.metrics.loggers as loggers

    assert '"vllm:time_to_first_token_seconds"' in Path(str(loggers.__file__)).read_text()
