"""The settings that this adapter has to act upon itself, on the real tree, pools and admission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semblend_core import DeclineReason
from semblend_core.testing import passage

DOCUMENT = passage(2, 400)
DONOR = [*passage(1, 64), *DOCUMENT]
ASKED = [*passage(3, 80), *DOCUMENT, *passage(4, 40)]


@pytest.fixture
def rig_with(new_rig: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **settings: new_rig(lookup_budget_ms=600_000.0, **settings)


def reused(rig: Any, wish: Any) -> bool:
    """Whether the prompt of a request with this wish is a donor for the next one."""
    rig.serve(DONOR, "donor", wish=wish)
    return bool(rig.serve(ASKED, "asked", wish={"capture": False}).cached_tokens)


@pytest.mark.parametrize(
    ("settings", "wish", "kept"),
    [
        ({"capture": "all"}, {}, True),
        ({"capture": "all"}, "discovery", True),
        ({"capture": "all"}, {"capture": False}, False),
        ({"capture": "all"}, {"capture": "no"}, False),
        ({"capture": "all"}, {"mode": "off", "capture": True}, False),
        ({"capture": "hinted"}, {}, False),
        ({"capture": "hinted"}, {"capture": True}, True),
        ({"capture": "sampled", "capture_share": 0.0}, {}, False),
        ({"capture": "sampled", "capture_share": 0.0}, {"capture": True}, False),
        ({"capture": "sampled", "capture_share": 1.0}, {}, True),
        ({"enabled": False}, {"capture": True}, False),
    ],
    ids=str,
)
def test_which_prompts_become_donors(rig_with: Callable[..., Any], settings: Any, wish: Any, kept: bool) -> None:
    rig = rig_with(**settings)
    assert reused(rig, wish) is kept
    assert len(rig.side.donors) == kept


def test_what_nobody_wants_to_keep_is_read_for_the_self_test(rig_with: Callable[..., Any]) -> None:
    rig = rig_with(capture="hinted", proved=False)
    rig.serve(DONOR, "donor", wish={"capture": True})
    assert rig.serve(ASKED, "asked too early").cached_tokens == 0
    words = passage(8, 40)
    rig.serve([words[n * 7 % 40] for n in range(300)], "repeats its words")
    assert rig.side.self_test.passed
    assert len(rig.side.donors) == 1
    assert rig.serve(ASKED[:-1], "asked again").cached_tokens > 300


def test_until_the_self_test_has_passed_it_is_pending_and_not_failed(rig_with: Callable[..., Any]) -> None:
    assert rig_with().side.self_test.why_not is None
    self_test = rig_with(proved=False).side.self_test
    assert self_test.why_not is DeclineReason.SELF_TEST_PENDING
    self_test.refuse("for a test")
    assert self_test.why_not is DeclineReason.SELF_TEST_FAILED


@pytest.mark.parametrize(("limit", "seams"), [(None, True), (0.0, False)])
def test_no_more_is_computed_afresh_than_the_limit(
    rig_with: Callable[..., Any], limit: float | None, seams: bool
) -> None:
    rig = rig_with(recompute_limit=limit)
    rig.serve(DONOR, "donor")
    request = rig.submit(ASKED, "asked")
    request.init_next_round_input(rig.tree)
    claim = rig.side.claimed(request).claim
    gap = ASKED.index(DOCUMENT[0])
    assert (claim.row_tokens > gap) is seams
    rig.step()
    assert (claim.reused_tokens == len(DOCUMENT)) is not seams


@pytest.mark.parametrize(("eviction", "stays"), [("lru", "seldom"), ("lfu", "often")])
def test_the_policy_decides_which_donor_makes_room(rig_with: Callable[..., Any], eviction: str, stays: str) -> None:
    rig = rig_with(max_donors=2, eviction=eviction)
    texts = {"often": DOCUMENT, "seldom": passage(20, 400), "new": passage(21, 400)}

    def ask(name: str, number: int) -> int:
        prompt = [*passage(100 + number, 50), *texts[name], *passage(200 + number, 20)]
        return int(rig.serve(prompt, f"{name}-{number}", wish={"capture": False}).cached_tokens)

    for name in ("often", "seldom"):
        rig.serve([*passage(1, 64), *texts[name]], name)
    assert all(ask("often", number) for number in range(3))
    assert ask("seldom", 3)
    rig.serve([*passage(1, 64), *texts["new"]], "new")
    assert {name for number, name in enumerate(texts, 4) if ask(name, number)} == {stays, "new"}
    assert len(rig.side.donors) == 2
    gone = "often" if stays == "seldom" else "seldom"
    rig.serve([*passage(5, 64), *texts[gone]], "again", wish={"mode": "discovery", "capture": True})
    assert ask(gone, 9), "it may become a donor again"
