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
