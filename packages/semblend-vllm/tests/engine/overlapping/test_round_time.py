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


def test_who_was_asked_about_before_is_asked_about_again_while_the_round_has_time(
    new_overlapping: Callable[..., Any],
) -> None:
    engine = new_overlapping()
    engine.add([*passage(1, 48), *DOCUMENT], 1)
    engine.finish()
    provider, admission = engine.side.provider, engine.side.admission
    request = engine.add(passage(10, 400), 1)  # Of which nobody knows anything yet.
    # As long as one lookup is, by this clock.
    admission.round = RoundTime(0.25, clock=lambda: float(provider.stats().lookups))

    def lookups_when_donors_have_changed() -> int:
        before = provider.stats().lookups
        engine.side.keeper.donors.generation += 1
        engine.side.prepare(request, 0)
        return int(provider.stats().lookups - before)

    assert lookups_when_donors_have_changed() == 1
    assert lookups_when_donors_have_changed() == 0
    admission.round.begin()
    assert lookups_when_donors_have_changed() == 1
    engine.finish()
    engine.check_nothing_is_left()
