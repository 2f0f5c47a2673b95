"""Servers that tests kill, and start again at the same place."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from semblend_core.testing.waiting import wait_until


class KillableServer:
    def __init__(self, scheme: str, command: Callable[[int], Sequence[str]], log: Path) -> None:
        """``command``: what to run for a port. It has not been started yet."""
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._command, self._log = command, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it takes connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command(self.port), stdout=log, stderr=log)
        wait_until(self._answers, f"a server at {self.url}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        with closing(socket.socket()) as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


def redis_server(folder: Path) -> KillableServer | None:
    """One that finds its content again when it is started anew; None where there is no ``redis-server``."""
    program = shutil.which("redis-server")
    if program is None:
        return None
    durable = ("--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir", str(folder))
    return KillableServer("redis", lambda port: [program, "--port", str(port), *durable], folder / "redis.log")
