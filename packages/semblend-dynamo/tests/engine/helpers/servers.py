"""etcd and NATS, as Debian brings them (`etcd-server`, `nats-server`), on loopback addresses."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from fleet import free_port

REACHED_S = 60


def missing() -> list[str]:
    """Debian packages of the servers that are not here."""
    programs = {"etcd": "etcd-server", "nats-server": "nats-server"}
    return [package for program, package in programs.items() if shutil.which(program) is None]


@contextlib.contextmanager
def etcd_and_nats(folder: Path) -> Iterator[dict[str, str]]:
    """Dynamo's variables for them."""
    client, peer, nats = free_port(), free_port(), free_port()
    etcd_url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    commands = {
        client: [
            *("etcd", "--data-dir", str(folder / "etcd"), "--log-level", "error"),
            *("--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url),
            *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", f"default={peer_url}"),
        ],
        nats: ["nats-server", "-a", "127.0.0.1", "-p", str(nats), "-js", "-sd", str(folder / "nats")],
    }
    running = []
    try:
        for port, command in commands.items():
            with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
                running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
            _until_reached(port, command[0])
        yield {
            "DYN_DISCOVERY_BACKEND": "etcd",
            "ETCD_ENDPOINTS": etcd_url,
            "DYN_REQUEST_PLANE": "nats",
            "DYN_EVENT_PLANE": "nats",
            "NATS_SERVER": f"nats://127.0.0.1:{nats}",
        }
    finally:
        for server in running:
            server.kill()
            server.wait()


def _until_reached(port: int, name: str) -> None:
    deadline = time.monotonic() + REACHED_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < deadline, f"{name} does not answer"
        time.sleep(0.1)
