"""The connector alone, without our scheduler: only what continues the exact prefix, and nothing left behind.

The provider is one that a setting names: what is found here, it has found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

OPENING = "You are a clerk. " + " ".join(f"Rule {n}: file sheet {n * 3 % 17} under {n * 7 % 23}." for n in range(9))
DOCUMENT = " ".join(f"Ship {n} left with {n * 31 % 61 + 4} bales for port {n * 11 % 13 + 1}." for n in range(36))
QUESTION = "Question: which ship was last?\nAnswer:"
CONTINUED = f"{OPENING}\n\n{DOCUMENT}\n\n{QUESTION}"
BEHIND_A_GAP = f"System: answer with a number.\n\n{DOCUMENT}\n\n{QUESTION}"
OFF = {"kv_transfer_params": {"semblend": "off"}}


@pytest.fixture(scope="module")
def lookups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("theirs") / "lookups"


@pytest.fixture(scope="module")
def server(new_server: Callable[..., Any], lookups: Path) -> Iterator[Any]:
    helpers = Path(__file__).with_name("helpers")
    theirs = {
        "SEMBLEND_VLLM_PROVIDER": "their_provider:make",
        "THEIR_LOOKUPS": str(lookups),
        "PYTHONPATH": os.pathsep.join([str(helpers), os.environ.get("PYTHONPATH", "")]),
    }
    with new_server(theirs, scheduler=False) as started:
        started.keep(f"Notes.\n\n{OPENING}\n\n{DOCUMENT}\n\nTitle:")
        started.keep(f"{OPENING}\n\nWhat is rule 3?\nAnswer:")
        yield started


def exact_prefix(server: Any) -> int:
    """Whole blocks of the opening, which vLLM holds itself."""
    return int(server.reused(f"{OPENING}\n\nAnd rule 4?", **OFF).cached_tokens)


def test_what_continues_the_exact_prefix_is_reused(server: Any) -> None:
    exact = exact_prefix(server)
    assert exact >= 64
    cold = server.reused(CONTINUED, cache_salt="cold", **OFF)
    answer = server.reused(CONTINUED)
    assert answer.confirmed_tokens > 0.6 * answer.prompt_tokens
    assert answer.cached_tokens == exact + answer.confirmed_tokens
    assert answer.text == cold.text


def test_the_same_prompt_afterwards_finds_its_true_prefix_only(server: Any) -> None:
    probe = server.reused(CONTINUED, **OFF)
    assert probe.cached_tokens == exact_prefix(server)
    assert probe.text == server.reused(CONTINUED, cache_salt="cold too", **OFF).text


def test_nothing_behind_a_gap_is_reused(server: Any) -> None:
    answer = server.reused(BEHIND_A_GAP)
    assert (answer.cached_tokens, answer.confirmed_tokens) == (0, 0)
    assert answer.declined == ["strict_prefix_boundary"]


def test_the_start_says_which_flag_is_missing(server: Any) -> None:
    assert "add --scheduler-cls semblend_vllm.SemBlendScheduler" in server.log.read_text()


def test_a_provider_that_the_setting_names_is_asked(server: Any, lookups: Path) -> None:
    before = len(lookups.read_text().split())
    server.reused(BEHIND_A_GAP)
    assert len(lookups.read_text().split()) > before
