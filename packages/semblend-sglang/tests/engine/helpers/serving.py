"""SGLang's server with SemBlend, as users start it, and what its clients do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from semblend_core.testing import wait_until

PAGE = 16


@contextmanager
def serving(model_folder: Path, log: Path, **environment: str) -> Iterator[httpx.Client]:
    """Ends as SGLang's servers do as a rule: killed."""
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
    with log.open("wb") as output:
        # A session of its own, so that the engine's processes end with the server.
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        )
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=None) as client:
            try:
                _wait_until_up(client, process, log)
                yield client
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def ask(server: httpx.Client, prompt: str, *, wish: Any = "on", salt: str = "http") -> Any:
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    answer = server.post("/v1/completions", json={**body, "cache_salt": salt, "custom_params": {"semblend": wish}})
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(answer: Any) -> int:
    return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def _wait_until_up(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            return client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(answers, "the server answers")
