"""semblend-router in front of a real smg gateway, which sits in front of stub replicas.

smg is in no test environment: `sglang-router` installs the same command. Name the program in SEMBLEND_TEST_SMG, or let
the test install it into an environment of its own.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from semblend_core.testing import wait_until

SMG = "smg==1.13.0"

pytestmark = pytest.mark.exhaustive


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def smg_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    if named := os.environ.get("SEMBLEND_TEST_SMG"):
        return named
    folder = tmp_path_factory.mktemp("smg")
    venv.create(folder, with_pip=True)
    installed = subprocess.run([str(folder / "bin" / "pip"), "install", "-q", SMG], capture_output=True, check=False)
    if installed.returncode:
        pytest.skip(f"{SMG} cannot be installed here")
    return str(folder / "bin" / "smg")


@pytest.fixture
def gateway(smg_program: str, stub_process: Any, tmp_path: Path) -> Iterator[Callable[[int], tuple[str, list[Any]]]]:
    running: list[subprocess.Popen[bytes]] = []

    def start(workers: int) -> tuple[str, list[Any]]:
        stubs = [stub_process() for _ in range(workers)]
        port, metrics = free_port(), free_port()
        command = [smg_program, "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", "consistent_hashing"]
        command += ["--prometheus-port", str(metrics), "--worker-urls", *(stub.url for stub in stubs)]
        with (tmp_path / "smg.log").open("wb") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        url = f"http://127.0.0.1:{port}"

        def is_up() -> bool:
            assert running[-1].poll() is None, (tmp_path / "smg.log").read_text()[-2000:]
            try:
                return len(httpx.get(f"{url}/workers", trust_env=False).json()["workers"]) == workers
            except httpx.TransportError:
                return False

        wait_until(is_up, "smg has its workers")
        return url, stubs

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def document(seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(f"word{draw.randrange(100_000)}" for _ in range(300))


def test_requests_land_where_they_are_sent_and_smg_confirms_it(fleet: Any, gateway: Any) -> None:
    url, stubs = gateway(3)
    served = fleet(urls=[], gateway=url)
    homes = [served.chat(f"Summarize: {document(seed)}").headers["x-semblend-replica"] for seed in range(9)]
    assert len(set(homes)) == 3
    wait_until(lambda: served.status()["donors"] == 9, "all are remembered", every_s=0.01)
    for seed in range(9):
        answer = served.chat(f"Another instruction stands here. {document(seed)}")
        assert answer.headers["x-semblend-replica"] == homes[seed]
        assert answer.headers["x-semblend-routing-path"] == "semantic_locality"
        assert "x-smg-routed-worker-id" not in answer.headers
    decisions = served.status()["decisions"]
    # smg names the worker of every answer: landed is its word.
    assert [each["landed"] for each in decisions[:9]] == [each["chosen"] for each in decisions[:9]]
    assert len({each["url"] for each in served.client.get("/v1/replicas").json()["replicas"]}) == len(stubs)


def test_a_wrong_belief_about_the_order_is_corrected_by_answers(fleet: Any, gateway: Any) -> None:
    url, _ = gateway(3)
    served = fleet(urls=[], gateway=url, policy="round_robin", probe_interval_s=3600)
    for _ in range(9):
        assert served.chat("hi").status_code == 200
    known = dict(served.router.backend._index)
    assert sorted(known.values()) == [0, 1, 2]
    urls = list(known)
    served.router.backend._index.update({url: known[urls[(n + 1) % 3]] for n, url in enumerate(urls)})
    for _ in range(9):
        assert served.chat("hi").status_code == 200
    assert served.router.backend._index == known
    newest = served.status()["decisions"][:3]
    assert [each["landed"] for each in newest] == [each["chosen"] for each in newest]


def test_a_pinned_worker_that_is_killed_costs_no_request(fleet: Any, gateway: Any) -> None:
    url, stubs = gateway(3)
    served = fleet(urls=[], gateway=url)
    home = served.chat(document(1)).headers["x-semblend-replica"]
    wait_until(lambda: served.status()["donors"] == 1, "it is remembered", every_s=0.01)
    address = next(each["url"] for each in served.client.get("/v1/replicas").json()["replicas"] if each["name"] == home)
    next(stub for stub in stubs if stub.url == address).kill()
    for number in range(12):
        answer = served.chat(f"{number} {document(1)}", stream=number % 2 == 0)
        assert answer.status_code == 200
        assert answer.headers["x-semblend-replica"] != home
