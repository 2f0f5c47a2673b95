"""Nobody waits for the copy of a prompt: it is made once the first token is out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semblend_core.testing import passage


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 3, 8])
def test_a_prompt_is_captured_behind_its_first_token_or_with_its_last_step(
    new_overlapping: Callable[..., Any], overlapping: bool, tokens: int
) -> None:
    engine = new_overlapping(overlapping=overlapping)
    request, computes, captures = engine.add(passage(1, 300), tokens), [], []
    put_into = engine.side.put_into

    def listen(work: Any, scheduled: dict[str, int], block_ids_of: Any) -> None:
        put_into(work, scheduled, block_ids_of)
        computes.extend(scheduled.values())
        captures.extend((request.num_output_tokens, sum(computes)) for _ in work.captures)

    engine.side.put_into = listen
    engine.finish()
    [(answered, computed)] = captures
    assert answered > 0 or computed == 300 + tokens - 1
    assert len(engine.side.keeper.donors) == 1
    engine.check_nothing_is_left()


def test_one_that_is_aborted_before_its_first_token_leaves_no_donor(new_overlapping: Callable[..., Any]) -> None:
    engine = new_overlapping()
    request = engine.add(passage(1, 300), 8)
    engine.schedule()
    engine.schedule()
    engine.abort(request)
    engine.finish()
    assert len(engine.side.keeper.donors) == 0
    engine.check_nothing_is_left()


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("salt", ["tenant", "other"])
def test_of_two_under_one_id_each_is_captured_as_what_it_is(
    new_overlapping: Callable[..., Any], overlapping: bool, salt: str
) -> None:
    """Clients may choose ids: one goes away while its load is under way, and another comes by the same.

    vLLM itself gives the second what was sampled for the first, so answers are not compared.
    """
    engine = new_overlapping(overlapping=overlapping, tokens_of_a_step=512)
    engine.add([*passage(3, 40), *passage(1, 240)], 1)
    engine.finish()
    first = engine.add([*passage(2, 160), *passage(1, 240), *passage(5, 9)], 8, request_id="x")
    engine.schedule()
    assert engine.side.requests.get("x").approximate_from is not None, "no test of anything"
    engine.abort(first)
    engine.add(passage(6, 200), 3, salt=salt, request_id="x")
    engine.schedule()  # The worker looks at what it is told to capture.
    engine.finish()
    assert len(engine.side.keeper.donors) == 2, "what was there before, and the second"
    engine.check_nothing_is_left()
