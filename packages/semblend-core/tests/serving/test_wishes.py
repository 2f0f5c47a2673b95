"""What a request may ask for, how it is read, and which prompts become donors for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from semblend_core import Settings
from semblend_core.serving import Wish
from semblend_core.testing.fuzzing import few_or_many, fuzz, values

OFF = Wish("off", capture=False)


@pytest.mark.parametrize("parameters", [None, {}, {"other": 1}, "semblend", ["semblend"], 7], ids=str)
def test_what_says_nothing_about_semblend_wishes_nothing(parameters: Any) -> None:
    assert Wish.among(parameters) == Wish("on", None)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("on", Wish("on")),
        ("off", OFF),
        ("discovery", Wish("discovery")),
        ({}, Wish("on")),
        ({"mode": "discovery"}, Wish("discovery")),
        ({"capture": True}, Wish("on", True)),
        ({"mode": "on", "capture": False}, Wish("on", False)),
        ({"mode": "discovery", "capture": None}, Wish("discovery")),
        ({"mode": "off", "capture": True}, OFF),
        ({"something": "later versions know"}, Wish("on")),
    ],
    ids=str,
)
def test_what_can_be_said(said: Any, expected: Wish) -> None:
    assert Wish.among({Wish.PARAMETER: said, "other": 1}) == expected


@pytest.mark.parametrize(
    "said",
    [
        *(None, True, False, 0, 7, 2.5, "", "ON", "sideways", [], ["on"]),
        *({"mode": None}, {"mode": 5}, {"mode": []}, {"mode": {"mode": "on"}}, {"mode": "sideways", "capture": True}),
        *({"capture": 1}, {"capture": 0}, {"capture": "yes"}, {"capture": []}),
    ],
    ids=str,
)
def test_what_is_not_understood_counts_as_off(said: Any) -> None:
    assert Wish.among({"semblend": said}) == OFF


@pytest.mark.parametrize(("policy", "kept"), [("all", True), ("hinted", False)])
def test_without_a_wish_the_policy_decides(policy: Any, kept: bool) -> None:
    assert Wish().makes_donor(Settings(capture=policy)) is kept


@pytest.mark.parametrize("policy", ["all", "sampled", "hinted"])
def test_a_request_that_wants_no_donor_is_none_whatever_the_policy(policy: Any) -> None:
    settings = Settings(capture=policy, capture_share=1.0)
    assert Wish(capture=True).makes_donor(settings)
    assert not Wish(capture=False).makes_donor(settings)
    assert not OFF.makes_donor(settings)


def test_a_request_that_wants_to_be_a_donor_is_none_where_the_sample_leaves_it_out() -> None:
    assert not Wish(capture=True).makes_donor(Settings(capture="sampled", capture_share=0.0))


def test_a_sample_is_the_share_that_was_asked_for() -> None:
    for share, low, high in ((0.0, 0, 0), (0.3, 480, 720), (1.0, 2000, 2000)):
        settings = Settings(capture="sampled", capture_share=share)
        assert low <= sum(Wish().makes_donor(settings) for _ in range(2000)) <= high


def test_nothing_is_kept_where_semblend_is_off() -> None:
    assert not Wish(capture=True).makes_donor(Settings(enabled=False))


@few_or_many
def test_whatever_a_client_says_it_asks_for_no_more_than_the_settings_allow(cases: int) -> None:
    def check(parameters: Any) -> None:
        wish = Wish.among(parameters)
        assert wish.mode in ("on", "off", "discovery")
        assert wish.capture in (True, False, None)
        assert not wish.makes_donor(Settings(enabled=False))
        assert not wish.makes_donor(Settings(capture="sampled", capture_share=0.0))
        assert wish.makes_donor(Settings(capture="all")) is (wish.capture is not False)

    ours = st.fixed_dictionaries({"semblend": values | st.fixed_dictionaries({"mode": values, "capture": values})})
    fuzz(cases, check, values | ours)
