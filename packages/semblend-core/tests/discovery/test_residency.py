"""Among donors that hold the same, the one whose KV is at hand is found."""

from __future__ import annotations

import numpy as np

from semblend_core.discovery import Geometry, SpanIndex

DOCUMENT = np.random.default_rng(1).integers(0, 50_000, 1500).astype(np.int32)


def test_the_newest_of_equal_donors_is_found() -> None:
    index = SpanIndex(Geometry())
    serials = [index.add(index.prepare(DOCUMENT, 0)) for _ in range(3)]
    assert {run.donor for run in index.find(DOCUMENT[200:1200], 0, 64) or []} == {serials[-1]}


def test_an_older_donor_at_hand_is_preferred_to_a_newer_one_that_is_not() -> None:
    index = SpanIndex(Geometry())
    serials = [index.add(index.prepare(DOCUMENT, 0)) for _ in range(3)]
    index.set_resident(serials[-1], False)
    assert {run.donor for run in index.find(DOCUMENT[200:1200], 0, 64) or []} == {serials[1]}
    index.set_resident(serials[-1], True)
    assert {run.donor for run in index.find(DOCUMENT[200:1200], 0, 64) or []} == {serials[-1]}


def test_a_donor_out_of_reach_still_serves_what_no_other_holds() -> None:
    index = SpanIndex(Geometry())
    serial = index.add(index.prepare(DOCUMENT, 0))
    index.set_resident(serial, False)
    (run,) = index.find(DOCUMENT[200:1200], 0, 64) or []
    assert (run.donor, run.length) == (serial, 1000)
