"""A server with two ranks, behind one that has ended: what lies whole at both is found, and a rank may be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from semblend_core.testing import wait_until

pytestmark = pytest.mark.exhaustive

LARGEST_KL = 0.05
"""One document behind a new instruction."""
WORDS = ("few", "three", "four", "five", "six", "seven")
"""A busy machine may read from its disk for longer than a request waits: then another one asks."""


@pytest.fixture(scope="module")
def files(two_ranks: dict[str, Any], disk: Path) -> dict[str, list[Path]]:
    """By donor, what the engine before left of it at each rank. Of one, the second rank's part is cut short."""
    left = {kind: [disk / "disk" / name for name in names] for kind, names in two_ranks["files"].items()}
    with left["Torn"][1].open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) // 2)
    return left


@pytest.fixture(scope="module")
def ranks(
    new_server: Callable[..., AbstractContextManager[Any]],
    one_thread_each: dict[str, str],
    files: dict[str, list[Path]],
    split_model: Path,
    disk: Path,
) -> Iterator[Any]:
    settings = {
        "SEMBLEND_STORE_HOST_BYTES": "0",
        "SEMBLEND_STORE_DISK_BYTES": "1GiB",
        "SEMBLEND_STORE_DISK_PATH": str(disk / "disk"),
        **one_thread_each,
    }
    with new_server(settings, "--model", str(split_model), "--tensor-parallel-size", "2", spawns=True) as started:
        yield started


def test_each_rank_has_files_of_its_own(files: dict[str, list[Path]]) -> None:
    assert [[file.parent.parent.name for file in each] for each in files.values()] == [["rank-0", "rank-1"]] * 2


def test_what_is_whole_at_both_ranks_is_found_again(ranks: Any, texts: Any, divergence: Any) -> None:
    ranks.keep(texts.donor("Anchor"), cache_salt="restart")  # The self-test is passed, and the tenant is known.
    for word in WORDS:
        prompt = texts.recipient("Restart").replace("few", word)
        reused = ranks.reused(prompt, cache_salt="restart")
        if reused.confirmed_tokens:
            break
    cold = ranks.reused(prompt, cache_salt="cold", kv_transfer_params={"semblend": "off"})
    assert reused.confirmed_tokens > 0.7 * reused.prompt_tokens
    assert divergence(cold, reused) < LARGEST_KL


def test_what_one_rank_has_lost_is_not(ranks: Any, texts: Any) -> None:
    cold = ranks.reused(texts.recipient("Torn"), cache_salt="cold", kv_transfer_params={"semblend": "off"})
    asked = ranks.reused(texts.recipient("Torn"), cache_salt="restart")
    assert (asked.cached_tokens, asked.confirmed_tokens) == (0, 0)
    assert asked.declined == ["no_spans"]
    assert asked.text == cold.text


def test_another_tenant_finds_nothing_of_it(ranks: Any, texts: Any) -> None:
    asked = ranks.reused(texts.recipient("Restart"), cache_salt="another")
    assert (asked.cached_tokens, asked.confirmed_tokens) == (0, 0)


def test_a_killed_rank_ends_the_server_with_a_word(ranks: Any, texts: Any) -> None:
    """Last in this file. As without SemBlend: nobody waits for an answer that cannot come."""
    (socket,) = (ranks.audit.parent / "control").glob("worker-1-*")
    os.kill(int(socket.name.removeprefix("worker-1-").split(".")[0]), signal.SIGKILL)
    body = {"model": ranks.model, "prompt": texts.recipient("Restart"), "max_tokens": 4, "cache_salt": "restart"}
    try:
        status = ranks.client.post("/v1/completions", json=body).status_code
    except httpx.TransportError:
        status = 0  # It has ended already.
    assert status in (0, 500, 503)
    wait_until(lambda: ranks.process.poll() is not None, "the server ends")
    assert "died unexpectedly" in ranks.log.read_text()
