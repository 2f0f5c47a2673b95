"""A budget that is too small: a donor can go at any moment, also between plan and load."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

TEXT = " ".join(f"Crate {n} holds {n * 17 % 53 + 2} lamps for street {n * 7 % 29 + 1}." for n in range(36))
DONOR = f"A delivery.\n\n{TEXT}\n\nQuestion: which is the fullest?\nAnswer:"
RECIPIENT = f"System: reply with one number, from the delivery.\n\n{TEXT}\n\nQuestion: how many?\nAnswer:"


def overfill(engine: Any) -> None:
    """Put other donors into the worker's store until the budget has dropped all that was there."""
    import torch

    from semblend_core.kv import DonorKv

    store, tokens = engine.worker._store, 1000
    namespace = engine.side._follow.namespace(SimpleNamespace(lora_request=None, cache_salt="fillers"))
    keys = torch.zeros(30, tokens, 3, 64)
    count = 2 + engine.settings.store_host_bytes // (2 * keys.numel() * 4)
    for number in range(count):
        donor = DonorKv(keys, keys.clone())
        # Dear ones: what is cheap to lose makes room for them.
        store.put(namespace, f"filler-{number}", donor, token_ids=range(tokens), saved_ms=1e9)
        store.flush()
    for number in range(count):
        store.forget(namespace, f"filler-{number}")


def test_a_donor_that_the_budget_drops_between_plan_and_load(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = engine.ask(RECIPIENT, salt="dropped, cold", reuse="off")
    engine.ask(DONOR, salt="dropped", tokens=1)
    engine.settle()
    executor, loads = engine.core.model_executor, []
    execute = executor.execute_model

    def dropped_first(output: Any, *args: Any, **kwargs: Any) -> Any:
        if output.kv_connector_metadata.loads:
            loads.extend(output.kv_connector_metadata.loads)
            overfill(engine)
        return execute(output, *args, **kwargs)

    before = engine.stats()
    with monkeypatch.context() as patched:
        patched.setattr(executor, "execute_model", dropped_first)
        answer = engine.ask(RECIPIENT, salt="dropped")
    after = engine.stats()
    assert len(loads) == 1, "the plan was made and its load ordered"
    assert answer.text == cold.text
    assert answer.cached_tokens == 0
    assert after.confirmed_tokens == before.confirmed_tokens
    assert after.declines["donor_evicted"] == before.declines.get("donor_evicted", 0) + 1
    engine.check_integrity()


def test_a_dropped_donor_is_found_no_more(engine: Any) -> None:
    engine.ask(DONOR, salt="forgotten", tokens=1)
    engine.settle()
    donors = engine.stats().donors
    overfill(engine)
    engine.settle()
    assert engine.stats().donors < donors
    before = engine.stats().plans
    answer = engine.ask(RECIPIENT, salt="forgotten")
    assert answer.cached_tokens == 0
    assert engine.stats().plans == before
    engine.check_integrity()


def test_a_donor_is_kept_with_what_it_takes_to_compute_it(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from semblend_core.costs import Part, StepShape, StepTimes

    times = StepTimes()
    for tokens in (256, 512, 1024, 512):
        times.observe(StepShape.of([Part(0, tokens)]), 50.0 * tokens)
    with monkeypatch.context() as patched:
        patched.setattr(engine.side.costs, "times", times)
        patched.setattr(engine.side.costs, "is_on", True)
        engine.ask(DONOR, salt="priced", tokens=1)
        engine.settle()
    budgets = engine.worker._store._holdings.budgets
    host = next(budget.policy for tier, budget in budgets.items() if tier.value == "host")
    for policy in (engine.side.provider.registry._policy, host):
        priced = [entry for entry in policy.entries.values() if entry.saved_ms]
        assert len(priced) == 1, "those before it came while nothing was timed"
        assert 0.02 < priced[0].saved_ms / priced[0].tokens < 0.08
    engine.check_integrity()
