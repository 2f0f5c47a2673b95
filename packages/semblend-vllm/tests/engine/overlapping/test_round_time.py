"""A burst of requests is looked up over several steps: vLLM's thread has others to serve."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from semblend_core.serving import RoundTime
from semblend_core.testing import passage

DOCUMENT = passage(2, 717)


def test_a_step_has_time_for_a_few_first_lookups_and_who_is_behind_waits(new_overlapping: Callable[..., Any]) -> None:
    engine = new_overlapping(tokens_of_a_step=4096, places=32, blocks=2048)
    engine.add([*passage(1, 48), *DOCUMENT], 1)
    engine.finish()
    # Each takes all the time that it may.
    engine.side.admission.round = RoundTime(1.0, clock=lambda: float(engine.side.provider.stats().lookups))
    asked = [engine.add([*passage(10 + n, 30), *DOCUMENT, *passage(30 + n, 20)], 1) for n in range(10)]
    plain = engine.add(passage(50, 60), 1, "off")
    looked_up = [engine.side.provider.stats().lookups]
    first_step = engine.schedule().num_scheduled_tokens
    while engine.scheduler.has_requests():
        looked_up.append(engine.side.provider.stats().lookups)
        engine.drain()
        engine.schedule()
    engine.drain()
    per_step = [after - before for before, after in pairwise(looked_up)]
    assert (per_step[0], max(per_step), sum(per_step)) == (4, 4, 10)
    assert plain.request_id in first_step, "who wants no reuse waits for no lookup"
    assert not any(request.request_id in first_step for request in asked[4:])
    engine.check_nothing_is_left()
