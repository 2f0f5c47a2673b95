"""vLLM resets its caches when the weights change: what was, or is being, computed is then nobody's donor."""

from __future__ import annotations

from typing import Any

import pytest

TEXT = " ".join(f"Mast {n} carries {n * 11 % 47 + 3} yards of sail and {n * 3 % 17 + 1} ropes." for n in range(30))
DONOR = f"A harbour list.\n\n{TEXT}\n\nQuestion: which is the tallest?\nAnswer:"
RECIPIENT = f"System: one number only, from the list.\n\n{TEXT}\n\nQuestion: how many?\nAnswer:"


@pytest.mark.parametrize("when", ["after it", "while it is under way"])
@pytest.mark.parametrize("connector_too", [True, False])
def test_a_donor_of_the_old_weights_is_found_no_more(
    engine: Any, monkeypatch: pytest.MonkeyPatch, when: str, connector_too: bool
) -> None:
    """Trainers ask vLLM to reset its own cache, and not its connector's."""
    claim, resets = engine.side.claim, []
    salt = f"{when}, {connector_too}"

    def reset_behind(*args: Any) -> Any:
        answer = claim(*args)
        if not resets:
            resets.append(engine.llm.reset_prefix_cache(reset_connector=connector_too))
        return answer

    with monkeypatch.context() as patched:
        if when == "while it is under way":
            patched.setattr(engine.side, "claim", reset_behind)
        engine.ask(DONOR, salt=salt, tokens=1)
    if not resets:
        engine.settle()
        assert engine.stats().donors > 0
        engine.llm.reset_prefix_cache(reset_connector=connector_too)
    engine.settle()
    assert engine.stats().donors == 0
    engine.empty_own_cache()
    assert engine.ask(RECIPIENT, salt=salt).cached_tokens == 0
    engine.check_integrity()


def test_its_memory_is_free_at_once(engine: Any) -> None:
    """Not with the next step: vLLM may be put to sleep now, for the sake of its memory."""
    engine.ask(DONOR, salt="memory", tokens=1)
    engine.settle()
    assert sum(tier.bytes for tier in engine.worker._store.stats().tiers.values()) > 0
    engine.llm.reset_prefix_cache()
    assert sum(tier.bytes for tier in engine.worker._store.stats().tiers.values()) == 0


@pytest.mark.parametrize("one_process", [True, False])
def test_weights_that_are_reloaded_without_a_reset(
    engine: Any, monkeypatch: pytest.MonkeyPatch, one_process: bool
) -> None:
    """The worker's half hears of it. One in another process voids the orders of a scheduler that does not know yet."""
    salt = f"reloaded, {one_process}"
    engine.ask(DONOR, salt=salt, tokens=1)
    engine.settle()
    assert engine.stats().donors > 0
    engine.llm.collective_rpc("reload_weights")
    before = engine.stats()
    with monkeypatch.context() as patched:
        if not one_process:
            patched.setattr(engine.side._neighbour, "take_news", lambda: None)
        assert engine.ask(RECIPIENT, salt=salt, reuse={"capture": False}).cached_tokens == 0
    assert engine.stats().confirmed_tokens == before.confirmed_tokens
    assert engine.stats().plans - before.plans == (0 if one_process else 1)
    assert engine.stats().donors == 0
    engine.ask(DONOR, salt=salt, tokens=1)
    engine.settle()
    assert engine.ask(RECIPIENT, salt=salt).cached_tokens > 0, "donors of the weights that are there now"
    engine.check_integrity()
