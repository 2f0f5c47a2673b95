"""vLLM resets its caches when the weights change: what was, or is being, computed is then nobody's donor."""

from __future__ import annotations

from typing import Any

import pytest

TEXT = " ".join(f"Mast {n} carries {n * 11 % 47 + 3} yards of sail and {n * 3 % 17 + 1} ropes." for n in range(30))
DONOR = f"A harbour list.\n\n{TEXT}\n\nQuestion: which is the tallest?\nAnswer:"
RECIPIENT = f"System: one number only, from the list.\n\n{TEXT}\n\nQuestion: how many?\nAnswer:"


@pytest.mark.parametrize("when", ["after it", "while it is under way"])
def test_a_donor_of_the_old_weights_is_found_no_more(engine: Any, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    claim, resets = engine.side.claim, []

    def reset_behind(*args: Any) -> Any:
        answer = claim(*args)
        if not resets:
            resets.append(engine.scheduler.connector.reset_cache())
        return answer

    with monkeypatch.context() as patched:
        if when == "while it is under way":
            patched.setattr(engine.side, "claim", reset_behind)
        engine.ask(DONOR, salt=when, tokens=1)
    if not resets:
        engine.settle()
        assert engine.stats().donors > 0
        engine.scheduler.connector.reset_cache()
    engine.settle()
    assert engine.stats().donors == 0
    engine.llm.reset_prefix_cache()
    assert engine.ask(RECIPIENT, salt=when).cached_tokens == 0
    engine.check_integrity()
