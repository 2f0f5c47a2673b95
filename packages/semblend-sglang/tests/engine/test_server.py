"""Over HTTP, as users run it: the launcher, pages of 16 tokens, prompts in pieces, metrics and the audit stream."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from archive import first, recipient
from running_engine import ended
from serving import ask, cached, serving

from semblend_core.testing import records_so_far, wait_until
from semblend_core.testing.published import LiveServer, PublishedSequence

PROMPT = recipient("new instruction", "What did the brewery pay for?")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(files: Path, shallow_folder: Path) -> Iterator[httpx.Client]:
    settings = {
        # As in a container: records between the lines of the log.
        "SEMBLEND_AUDIT_PATH": "/dev/stdout",
        "SEMBLEND_SHARING": "salted",
        "SEMBLEND_CONTROL_DIR": str(files / "control"),
        "SEMBLEND_SGLANG_KEEP_DONORS": "1",
        "SEMBLEND_STORE_HOST_BYTES": "0",
        "SEMBLEND_STORE_DISK_BYTES": "1GiB",
        "SEMBLEND_STORE_DISK_PATH": str(files / "kept"),
    }
    with serving(shallow_folder, files / "log", **settings) as client:
        yield client


def wait_for_kept(files: Path, donors: int) -> None:
    wait_until(lambda: len(list((files / "kept").glob("donors/*.json"))) == donors, f"{donors} donors on disk")


def records_of(files: Path) -> Any:
    """The audit stream with the end of the three requests: it is written in the background."""
    wait_until(lambda: len(ended(records_so_far(files / "log"))) >= 3, "three ends on record")
    return records_so_far(files / "log")


def counter(server: httpx.Client, name: str) -> float:
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", server.get("/metrics").text, re.MULTILINE)
    return sum(map(float, found))


def test_a_changed_instruction_is_reused_over_http(server: httpx.Client, files: Path) -> None:
    ask(server, first())
    reused = ask(server, PROMPT)
    cold = ask(server, PROMPT, salt="another tenant")

    assert cached(cold) == 0
    assert reused["choices"][0]["text"] == cold["choices"][0]["text"]
    assert cached(reused) > 0.6 * reused["usage"]["prompt_tokens"]
    assert counter(server, "semblend_confirmed_tokens_total") == cached(reused)
    assert counter(server, "sglang:cached_tokens_total") == cached(reused), "SGLang's own metric counts rows as cached"
    assert counter(server, "semblend_outcomes_total") >= 3
    wait_until(lambda: counter(server, "semblend_donors") == 2, "two donors")
    assert counter(server, r'semblend_self_test\{state="passed"\}') == 1
    assert [record["event"] for record in records_of(files)].count("materialized") == 1


def test_the_same_prompt_without_reuse_finds_its_exact_opening_and_nothing_else(server: httpx.Client) -> None:
    """What stands in front of the first relocated token was computed exactly."""
    assert cached(ask(server, PROMPT, wish="off")) < 32


def test_flushing_the_cache_forgets_the_donors(server: httpx.Client, files: Path) -> None:
    ask(server, first(), salt="flushed")
    wait_for_kept(files, 3)
    assert server.post("/flush_cache").status_code == 200
    wait_for_kept(files, 0)
    assert cached(ask(server, PROMPT, salt="flushed", wish={"capture": False})) == 0


def test_an_operator_purges_a_tenant_of_an_engine_that_has_nothing_to_do(server: httpx.Client, files: Path) -> None:
    ask(server, first(), salt="purged")
    wait_for_kept(files, 1)
    told = subprocess.run(
        [sys.executable, "-m", "semblend_core.control", "purge", "--dir", str(files / "control")],
        input="purged",
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    purged = json.loads(told.stdout)
    (report,) = purged["engines"].values()
    assert (report["donors"], report["stored"]) == (1, 1)
    assert purged["verified"]
    assert list((files / "kept").glob("donors/*")) == []
    assert cached(ask(server, PROMPT, salt="purged", wish={"capture": False})) == 0


@pytest.fixture(scope="class")
def served(server: httpx.Client, files: Path, shallow_folder: Path) -> Iterator[LiveServer]:
    yield LiveServer(
        engine="sglang",
        url=str(server.base_url),
        model="smollm2",
        tokenizer=str(shallow_folder),
        log=files / "log",
        replay=f"run-live-sglang --base-url {server.base_url}",
    )
    server.post("/flush_cache").raise_for_status()
    wait_for_kept(files, 0)


class TestPublishedSequence(PublishedSequence):
    pass


def test_new_weights_are_given_no_donors_of_the_old_ones(
    server: httpx.Client, files: Path, shallow_folder: Path
) -> None:
    """SGLang is told to keep its own cache."""
    ask(server, first(), salt="updated")
    wait_for_kept(files, 1)
    update = {"model_path": str(shallow_folder), "flush_cache": False}
    assert server.post("/update_weights_from_disk", json=update).json()["success"]
    wait_for_kept(files, 0)
    assert cached(ask(server, PROMPT, salt="updated")) == 0


def test_an_update_that_others_write_themselves_forgets_the_donors(server: httpx.Client, files: Path) -> None:
    """SGLang is told of its beginning and of its end, and of nothing else."""
    server.post("/flush_cache").raise_for_status()
    ask(server, first(), salt="written")
    wait_for_kept(files, 1)
    for step in ("begin_weight_update", "end_weight_update"):
        assert server.post(f"/{step}", json={}).json()["success"]
    wait_for_kept(files, 0)
    assert cached(ask(server, PROMPT, salt="written")) == 0


def test_nothing_of_ours_failed_and_sglang_saw_no_leak(server: httpx.Client, files: Path) -> None:
    for _ in range(4):  # Its loop goes round for each question it answers, and checks itself when it idles.
        server.get("/server_info").raise_for_status()
    log = (files / "log").read_text()
    assert "leak" not in log.lower()
    assert "no reuse for" not in log
    assert "semblend_sglang" not in log
