"""Over HTTP, as users run it: the launcher, pages of 16 tokens, prompts in pieces, metrics and the audit stream."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from archive import first, recipient

from semblend_core import read_audit

PAGE = 16
PROMPT = recipient("new instruction", "What did the brewery pay for?")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(files: Path, model_folder: Path) -> Iterator[httpx.Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *("semblend-sglang", "--model-path", str(model_folder), "--served-model-name", "smollm2"),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"),
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
        *("--page-size", str(PAGE), "--chunked-prefill-size", "512", "--max-total-tokens", "8192"),
        *("--context-length", "2048", "--max-running-requests", "8", "--enable-metrics", "--enable-cache-report"),
        *("--skip-server-warmup", "--log-level", "warning"),
    ]
    environment = {**os.environ, "SEMBLEND_AUDIT_PATH": str(files / "audit.jsonl")}
    log = files / "log"
    with log.open("wb") as output:
        # A session of its own, so that the engine's processes end with the server.
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            try:
                wait_until_up(client, process, log)
                yield client
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)


def wait_until_up(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])


def ask(server: httpx.Client, prompt: str, *, wish: Any = "on", salt: str = "http") -> Any:
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    answer = server.post("/v1/completions", json={**body, "cache_salt": salt, "custom_params": {"semblend": wish}})
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(answer: Any) -> int:
    return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


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
    assert counter(server, "semblend_donors") == 2
    events = [record["event"] for record in read_audit(files / "audit.jsonl").records]
    assert events.count("materialized") == 1


def test_the_same_prompt_without_reuse_finds_nothing(server: httpx.Client) -> None:
    assert cached(ask(server, PROMPT, wish="off")) == 0


def test_flushing_the_cache_forgets_the_donors(server: httpx.Client) -> None:
    ask(server, first(), salt="flushed")
    assert server.post("/flush_cache").status_code == 200
    assert cached(ask(server, PROMPT, salt="flushed")) == 0


def test_nothing_of_ours_failed_and_sglang_saw_no_leak(server: httpx.Client, files: Path) -> None:
    time.sleep(2)
    log = (files / "log").read_text()
    assert "leak" not in log.lower()
    assert "no reuse for" not in log
    assert "semblend_sglang" not in log
