"""Real servers over loopback: uvicorn in threads, or processes that can be killed."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from semblend_core.testing import wait_until


@dataclass
class Served:
    """A server that runs, and how to stop it."""

    url: str
    app: Any
    stop: Callable[[], None]


class ThreadedServer:
    def __init__(self, app: Any, port: int = 0) -> None:
        import uvicorn

        from semblend_dynamo.gateway.serving import PatientProtocol

        class QuickProtocol(PatientProtocol):
            head_timeout_s = 1.0

        config = uvicorn.Config(
            app, host="127.0.0.1", port=port, http=QuickProtocol, log_level="critical", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started or not self._thread.is_alive(), "the server starts")
        assert self._server.started, "the server did not start"
        bound: socket.socket = self._server.servers[0].sockets[0]
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Serve an ASGI application until the test ends."""
    running: list[ThreadedServer] = []

    def start(app: Any, port: int = 0) -> Served:
        server = ThreadedServer(app, port)
        running.append(server)
        return Served(server.url, app, server.stop)

    yield start
    for server in reversed(running):
        server.stop()


@dataclass
class StubProcess:
    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def stub_process() -> Iterator[Callable[..., StubProcess]]:
    """A stub replica in a process of its own."""
    running: list[StubProcess] = []

    def start(port: int = 0, pieces: int = 16) -> StubProcess:
        port = port or free_port()
        command = [sys.executable, "-m", "semblend_dynamo.stub_replica", str(port), str(pieces)]
        process = subprocess.Popen(command, env=dict(os.environ))
        started = StubProcess(f"http://127.0.0.1:{port}", process)
        running.append(started)
        wait_until(lambda: process.poll() is not None or _listens(port), "the stub replica listens")
        assert process.poll() is None, "the stub replica ended"
        return started

    yield start
    for each in running:
        each.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
