"""Over HTTP, as users run it: two processes, OpenAI's API, vLLM's own metrics and our audit stream."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

TEXT = " ".join(f"Lot {n} is a chair of oak number {n * 17 % 90}, sold for {n * 3 % 40 + 5} crowns." for n in range(40))
DONOR = f"An auction.\n\n{TEXT}\n\nQuestion: which lot was cheapest?\nAnswer:"
RECIPIENT = f"System: reply with one number from the list.\n\n{TEXT}\n\nQuestion: how many lots?\nAnswer:"
CONNECTOR = '{"kv_connector": "SemBlendConnectorV1", "kv_connector_module_path": "semblend_vllm", "kv_role": "kv_both"}'


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.jsonl"


@pytest.fixture(scope="module")
def server(audit: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    from semblend_core.reference import default_model_folder

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(default_model_folder()), "--served-model-name", "smollm2"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--block-size", "32"),
        *("--max-model-len", "2048", "--max-num-batched-tokens", "2048", "--max-num-seqs", "8"),
        *("--enable-prompt-tokens-details", "--kv-transfer-config", CONNECTOR),
        *("--scheduler-cls", "semblend_vllm.SemBlendScheduler"),
    ]
    environment = {**os.environ, "SEMBLEND_AUDIT_PATH": str(audit), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as output:
        # A session of its own, so that the engine's processes end with the server.
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            try:
                wait_until_up(client, process, log)
                yield client
            finally:
                os.killpg(process.pid, signal.SIGTERM)
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


def ask(server: httpx.Client, prompt: str, **more: Any) -> Any:
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 6, "temperature": 0, "cache_salt": "http", **more}
    answer = server.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def counter(server: httpx.Client, name: str) -> float:
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", server.get("/metrics").text, re.MULTILINE)
    return sum(map(float, found))


def test_a_changed_instruction_is_reused_over_http(server: httpx.Client, audit: Path) -> None:
    from semblend_core import read_audit

    cold = ask(server, RECIPIENT, cache_salt="http, cold", kv_transfer_params={"semblend": "off"})
    ask(server, DONOR)
    for _ in range(40):  # A donor can be found when it is durable, a moment after its answer.
        if counter(server, "semblend_donors") >= 1:
            break
        time.sleep(0.25)
        ask(server, "Say yes.", kv_transfer_params={"semblend": "off"})
    reused = ask(server, RECIPIENT)

    assert reused["choices"][0]["text"] == cold["choices"][0]["text"]
    confirmed = counter(server, "semblend_confirmed_tokens_total")
    assert confirmed > 0.7 * reused["usage"]["prompt_tokens"]
    assert reused["usage"]["prompt_tokens_details"]["cached_tokens"] == confirmed
    events = [record["event"] for record in read_audit(audit).records]
    assert events.count("materialized") == 1
    assert counter(server, "semblend_outcomes_total") >= 1


def test_the_same_prompt_without_reuse_finds_nothing(server: httpx.Client) -> None:
    probe = ask(server, RECIPIENT, kv_transfer_params={"semblend": "off"})
    assert (probe["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0) == 0
