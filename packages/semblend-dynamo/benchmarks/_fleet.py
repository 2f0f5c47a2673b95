"""Processes that benchmarks start and end: replicas, gateways, routers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import httpx

START_S = 600.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def process(command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Until the block ends; then the process and its children are ended."""
    with log.open("ab") as output:
        started = subprocess.Popen(
            list(command), stdout=output, stderr=output, env={**os.environ, **(env or {})}, start_new_session=True
        )
    try:
        yield started
    finally:
        end(started)


def end(started: subprocess.Popen[bytes], how: int = signal.SIGTERM) -> None:
    if started.poll() is None:
        os.killpg(started.pid, how)
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def wait_for(url: str, started: subprocess.Popen[bytes], log: Path) -> None:
    """Until ``url`` answers 200."""
    limit = time.monotonic() + START_S
    while True:
        if started.poll() is not None:
            raise SystemExit(f"a process ended at its start:\n{log.read_text(errors='replace')[-3000:]}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        if time.monotonic() > limit:
            raise SystemExit(f"{url} did not answer within {START_S:g} s")
        time.sleep(0.2)


class AuditPump:
    """Sorts what engines write to their standard output: audit records into one file, all else into a log."""

    def __init__(self, audit: Path, log: Path) -> None:
        self._audit, self._log = audit.open("ab", buffering=0), log.open("ab", buffering=0)
        self._lock = threading.Lock()

    def take(self, stream: IO[bytes]) -> None:
        threading.Thread(target=self._pump, args=(stream,), daemon=True).start()

    def _pump(self, stream: IO[bytes]) -> None:
        for line in stream:
            start = line.find(b'{"schema":"semblend.audit')
            with self._lock:
                if start >= 0:
                    self._audit.write(line[start:])
                else:
                    self._log.write(line)


@contextlib.contextmanager
def vllm_replica(
    python: str, model: str, port: int, pump: AuditPump, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    connector = json.dumps({"kv_connector": "SemBlendConnectorV1", "kv_role": "kv_both"})
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "smollm2"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--block-size", "32"),
        *("--max-model-len", "4096", "--max-num-batched-tokens", "4096", "--max-num-seqs", "4"),
        *("--enable-prompt-tokens-details", "--kv-transfer-config", connector),
    ]
    variables = {
        "SEMBLEND_AUDIT_PATH": "/dev/stdout",
        # It declines until it has seen what steps take: the policy that is tried first would have less to reuse.
        "SEMBLEND_COST_GATE": "0",
        "VLLM_PLUGINS": "semblend",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    log = folder / "engines.log"
    with log.open("ab") as errors:
        started = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    assert started.stdout is not None
    pump.take(started.stdout)
    try:
        yield started
    finally:
        end(started)


@contextlib.contextmanager
def smg(program: str, workers: Sequence[str], folder: Path) -> Iterator[str]:
    port, log = free_port(), folder / "smg.log"
    command = [
        *(program, "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", "consistent_hashing"),
        *("--prometheus-port", str(free_port()), "--worker-urls", *workers),
    ]
    with process(command, log) as started:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/workers", started, log)
        limit = time.monotonic() + START_S
        while len(httpx.get(f"{url}/workers", trust_env=False).json()["workers"]) < len(workers):
            if time.monotonic() > limit:
                raise SystemExit("smg did not take its workers")
            time.sleep(0.5)
        yield url


@contextlib.contextmanager
def router(settings: dict[str, str], folder: Path) -> Iterator[str]:
    port, log = free_port(), folder / "router.log"
    variables = {"SEMBLEND_ROUTER_PORT": str(port), **settings}
    command = [sys.executable, "-c", "from semblend_dynamo.router.application import main; main()"]
    with process(command, log, variables) as started:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health", started, log)
        yield url
