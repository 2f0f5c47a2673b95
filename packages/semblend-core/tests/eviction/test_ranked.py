"""The order of keys by a score: what it keeps of places that are no longer true."""

from __future__ import annotations

from semblend_core.eviction.ranked import SLACK, Ranking


def test_keys_that_go_leave_no_more_places_than_are_tolerated() -> None:
    ranking: Ranking[int] = Ranking()
    for key in range(1000):
        ranking.place(key, float(key))
    for key in range(1, 1000):
        ranking.drop(key)
        ranking.check_integrity()
    assert len(ranking._heap) <= 2 + SLACK
    assert ranking.first() == 0
