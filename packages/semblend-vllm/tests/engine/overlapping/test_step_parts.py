"""The cost gate is told which steps compute a part of a prompt: they take longer than those that only decode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semblend_core import Settings
from semblend_core.serving import CostGate, Part
from semblend_core.testing import passage


class Told(CostGate):
    def __init__(self) -> None:
        super().__init__(Settings(cost_gate=True, cost_dir="none"), step_tokens=256)
        self.parts: list[Part] = []

    def step_scheduled(self, made_for: Any, parts: list[Part] | None = None, *args: Any, **kwargs: Any) -> None:
        self.parts = parts or []


@pytest.mark.parametrize("slots_of_their_own", [False, True])
def test_what_a_preempted_request_computes_again_is_a_prompt_and_its_next_token_is_not(
    new_overlapping: Callable[..., Any], slots_of_their_own: bool
) -> None:
    from semblend_vllm.compat.timing import tell_scheduled

    engine, told = new_overlapping(overlapping=False, slots_of_their_own=slots_of_their_own), Told()

    def decodes() -> list[tuple[int, bool]]:
        tell_scheduled(told, engine.schedule())
        engine.drain()
        return [(part.tokens, part.decodes) for part in told.parts]

    request = engine.add(passage(1, 300), 8)
    assert [decodes() for _ in range(4)] == [[(256, False)], [(44, False)], [(1, True)], [(1, True)]]
    engine.preempt(request)
    engine.pool.reset_prefix_cache()
    assert [decodes() for _ in range(3)] == [[(256, False)], [(47, False)], [(1, True)]]
    engine.add([7], 2)
    assert decodes() == [(1, False), (1, True)], "a prompt of one token, in front of one that decodes"
    engine.finish()
