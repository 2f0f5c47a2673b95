"""LMCache as engines install it, and the servers behind it: a Redis and LMCache's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semblend_core.kv import DonorStore, StoreOptions
from semblend_core.testing import KillableServer, redis_server

pytest.importorskip("lmcache", reason="LMCache is in vLLM's engine environment")

MIB = 1024**2
sys.path.append(str(Path(__file__).with_name("helpers")))


def pytest_report_header() -> str:
    from importlib.metadata import version

    return f"core's engine tests run in LMCache {version('lmcache')}"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[KillableServer]:
    server = redis_server(tmp_path)
    if server is None:
        pytest.skip("needs Debian's redis-server")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def lmcache_server(tmp_path: Path) -> Iterator[KillableServer]:
    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "lmcache.v1.server", "127.0.0.1", str(port)]

    server = KillableServer("lm", command, tmp_path / "lm.log")
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
