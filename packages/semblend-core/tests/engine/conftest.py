"""LMCache as engines install it, and the servers behind it: a Redis and LMCache's own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semblend_core.kv import DonorStore, StoreOptions
from semblend_core.testing import wait_until

pytest.importorskip("lmcache", reason="LMCache is in vLLM's engine environment")

MIB = 1024**2
sys.path.append(str(Path(__file__).with_name("helpers")))


def pytest_report_header() -> str:
    from importlib.metadata import version

    return f"core's engine tests run in LMCache {version('lmcache')}"


class Server:
    """One that can be killed, and started again at its place."""

    def __init__(self, scheme: str, command: Callable[[int], list[str]], log: Path) -> None:
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._command, self._log = command, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command(self.port), stdout=log, stderr=log)
        wait_until(self._answers, f"a server at {self.url}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def _answers(self) -> bool:
        with closing(socket.socket()) as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Server]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs Debian's redis-server")
    kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir", str(tmp_path)]
    server = Server("redis", lambda port: [program, "--port", str(port), *kept], tmp_path / "redis.log")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def lmcache_server(tmp_path: Path) -> Iterator[Server]:
    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "lmcache.v1.server", "127.0.0.1", str(port)]

    server = Server("lm", command, tmp_path / "lm.log")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., DonorStore]]:
    """A store with LMCache as its only tier unless told otherwise; all share one list of donors."""
    opened: list[DonorStore] = []

    def open_one(url: str = "", **options: object) -> DonorStore:
        chosen = {"host_bytes": 0, "lmcache_bytes": 16 * MIB, "lmcache_path": tmp_path / "list", **options}
        opened.append(DonorStore(StoreOptions(lmcache_url=url, **chosen), device="cpu"))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
