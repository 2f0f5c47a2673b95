"""Real Dynamo on loopback addresses: frontends, routers and mock workers, each a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toy_model import write_toy_model

MODEL = "toy"
BLOCK = 16
START_S = 600
_WARM_UPS = itertools.count(10_000)
_HANDED_OUT: set[int] = set()
_COUNTED = re.compile(r"dynamo_component_requests_total\{([^}]*)\} (\d+)")


def free_port() -> int:
    """Below 32768: Dynamo reads its DYN_SYSTEM_PORT as a signed number of 16 bits.

    No port is handed out twice: who got it binds it only once it has started. A Dynamo process that finds its port
    taken goes on without metrics, and the other's would be read as its own.
    """
    for _ in range(100):
        port = random.randint(20_000, 32_000)
        if port in _HANDED_OUT:
            continue
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            _HANDED_OUT.add(port)
            return port
    raise AssertionError("no free port between 20000 and 32000")


@dataclass
class Process:
    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """As the kernel or a power cut would: nobody is told."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


@dataclass
class Worker(Process):
    metrics_port: int = 0

    def served(self) -> int:
        """How many requests it has taken, by its own count."""
        return sum(self._counts().values())

    @property
    def id(self) -> str:
        """Its instance id in hexadecimal digits, as it says itself."""
        [worker_id] = self._counts()
        return worker_id

    def _counts(self) -> dict[str, int]:
        counts = {}
        for labels, count in _COUNTED.findall(_get(self.metrics_port, "/metrics")):
            if 'dynamo_endpoint="generate"' in labels:
                found = re.search(r'worker_id="(\w+)"', labels)
                assert found is not None, labels
                counts[found[1]] = int(count)
        return counts


@dataclass
class Router(Process):
    metrics_port: int = 0

    def figure(self, name: str) -> int:
        """A figure of the router's own metrics, all labels together; 0 where it is not there yet."""
        labels = "" if "{" in name else r"(?:{[^}]*})?"
        found = re.findall(rf"^{re.escape(name)}{labels} (\d+)", _get(self.metrics_port, "/metrics"), re.MULTILINE)
        return sum(map(int, found))

    def until_donors(self, count: int, *, kv_events: bool = True) -> None:
        """Donors are registered, and their KV events arrive, shortly after the answer."""
        _until(lambda: self.figure("semblend_placement_donors") >= count, f"{self.name} knows {count} donors", self)
        if kv_events:
            _until(self._has_heard_of_its_requests, f"{self.name} has the KV events of its requests", self)
        time.sleep(0.5)

    def _has_heard_of_its_requests(self) -> bool:
        """Every prompt of these tests has a block of its own, so each request means one event or more."""
        lines = _get(self.metrics_port, "/metrics").splitlines()
        applied = [line for line in lines if line.startswith("dynamo_component_kv_cache_events_applied")]
        stored = [line for line in applied if 'event_type="stored"' in line and 'status="ok"' in line]
        return sum(int(line.split()[-1]) for line in stored) >= self.figure("semblend_placement_requests_total")

    def until_donors_are(self, count: int) -> None:
        _until(lambda: self.figure("semblend_placement_donors") == count, f"{self.name} knows {count} donors", self)


@dataclass
class Answer:
    text: str
    usage: Mapping[str, Any]
    semblend: Mapping[str, Any] | None
    """What the router said of its decision."""
    worker_said: Mapping[str, Any]
    """Engine data of the worker itself."""


@dataclass
class Fleet:
    folder: Path
    environment: dict[str, str]
    model: Path
    processes: list[Process] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)

    def start_workers(self, count: int) -> None:
        for number in range(count):
            port = free_port()
            command = [
                *("-m", "dynamo.mocker", "--model-path", str(self.model), "--model-name", MODEL),
                *("--block-size", str(BLOCK), "--endpoint", "dyn://workers.backend.generate"),
                *("--speedup-ratio", "20", "--num-gpu-blocks-override", "16384"),
            ]
            worker = Worker(**vars(self._start(f"worker-{number}", command, DYN_SYSTEM_PORT=str(port))))
            worker.metrics_port = port
            self.workers.append(worker)
        for worker in self.workers:
            _until(
                lambda worker=worker: _answers(worker.metrics_port, "/metrics"), f"{worker.name} has metrics", worker
            )

    def start_telling_workers(self, *names: str, **environment: str) -> dict[str, Process]:
        """Mock workers that say in every answer who they are and what reached them."""
        script = str(Path(__file__).parent / "telling_worker.py")
        return {name: self._start(f"worker-{name}", [script, name, str(self.model)], **environment) for name in names}

    def start_router(self, name: str = "router", *options: str, **environment: str) -> Router:
        port = free_port()
        command = [
            *("-m", "semblend_dynamo.dynamo", "--endpoint", "dyn://workers.backend.generate", "--namespace", "front"),
            *("--model-path", str(self.model), "--model-name", MODEL, "--block-size", str(BLOCK), *options),
        ]
        chosen = {"SEMBLEND_SHARING": "all", "SEMBLEND_EMBEDDER": "none", "DYN_SYSTEM_PORT": str(port)}
        # A slow machine is no defect: no lookup is given up for its time.
        chosen |= {"SEMBLEND_LOOKUP_BUDGET_MS": "60000"} | environment
        router = Router(**vars(self._start(name, command, **chosen)))
        router.metrics_port = port
        _until(lambda: "semblend-dynamo-router serves" in router.log.read_text(), f"{name} serves", router)
        return router

    def start_frontend(self, namespace: str, mode: str, *options: str) -> Frontend:
        port = free_port()
        command = ["-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
        command += ["--namespace", namespace, "--router-mode", mode, "--kv-cache-block-size", str(BLOCK), *options]
        process = self._start(f"frontend-{namespace}-{port}", command)
        frontend = Frontend(port, process)
        _until(lambda: MODEL in _get(port, "/v1/models"), f"{process.name} lists the model", process)
        return frontend

    def until_all_workers_serve(self, frontend: Frontend) -> None:
        """Start-up is a race: a router learns of workers one by one."""
        deadline = time.monotonic() + START_S
        while any(worker.served() == 0 for worker in self.workers):
            assert time.monotonic() < deadline, "some worker never got a request"
            frontend.ask(f"{next(_WARM_UPS)} to warm up, to warm up")

    def until_telling_workers_serve(self, frontend: Frontend, *names: str) -> None:
        missing = set(names)
        deadline = time.monotonic() + START_S
        while missing:
            assert time.monotonic() < deadline, f"no request reached {missing}"
            missing.discard(frontend.ask(f"{next(_WARM_UPS)} to warm up", tenant="warm-up").worker_said["who"])

    def landed(self, frontend: Frontend, text: str, **options: Any) -> tuple[int, Answer]:
        """The number of the worker that counted one request more, and the answer."""
        before = [worker.served() for worker in self.workers]
        answer = frontend.ask(text, **options)
        deadline = time.monotonic() + 120
        while True:
            grown = [n for n, worker in enumerate(self.workers) if worker.served() > before[n]]
            if grown or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        assert len(grown) == 1, f"one worker serves one request, by their own counts: {grown}"
        return grown[0], answer

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop()

    def _start(self, name: str, command: list[str], **environment: str) -> Process:
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **self.environment, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        process = Process(name, popen, log)
        self.processes.append(process)
        return process


@dataclass(frozen=True)
class Frontend:
    port: int
    process: Process

    def ask(self, text: str, *, tenant: str | None = None, max_tokens: int = 4, timeout: float = 300) -> Answer:
        """Raises AssertionError for any status but 200."""
        status, body = self.post(text, tenant=tenant, max_tokens=max_tokens, timeout=timeout)
        assert status == 200, (status, body)
        said = json.loads(body)
        [choice] = said["choices"]
        return _answer_of(said, choice["message"].get("content") or "")

    def stream(self, text: str, *, max_tokens: int) -> Iterator[Answer]:
        """Part after part, as each arrives."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        with self._answered(text, max_tokens=max_tokens, timeout=300, **options) as answer:
            assert answer.status == 200, answer.read()
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                said = json.loads(line.removeprefix(b"data: "))
                assert "error" not in said, said
                yield _answer_of(said, "".join(choice["delta"].get("content") or "" for choice in said["choices"]))

    def post(
        self, text: str, *, tenant: str | None = None, max_tokens: int = 4, timeout: float = 300
    ) -> tuple[int, str]:
        with self._answered(text, tenant=tenant, max_tokens=max_tokens, timeout=timeout) as answer:
            return answer.status, answer.read().decode()

    @contextlib.contextmanager
    def _answered(
        self, text: str, *, tenant: str | None = None, timeout: float, **options: Any
    ) -> Iterator[http.client.HTTPResponse]:
        messages = [{"role": "user", "content": text}]
        body = {"model": MODEL, "messages": messages, "nvext": {"extra_fields": ["engine_data"]}, **options}
        headers = {"content-type": "application/json"} | ({"x-tenant-id": tenant} if tenant else {})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            yield connection.getresponse()


@contextlib.contextmanager
def fleet_with_files(folder: Path) -> Iterator[Fleet]:
    """Discovery by files, TCP and ZeroMQ: no server is needed."""
    planes = {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "discovery"),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
    }
    with fleet(folder, planes) as made:
        yield made


@contextlib.contextmanager
def fleet(folder: Path, planes: Mapping[str, str]) -> Iterator[Fleet]:
    hosts = ("DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_SYSTEM_HOST")
    loopback = dict.fromkeys(hosts, "127.0.0.1")
    quiet = {"HF_HUB_OFFLINE": "1", "DYN_LOG": "warn,component.run=info", "DYN_SELF_HOST_METADATA": "0"}
    made = Fleet(folder, {**loopback, **quiet, **planes}, write_toy_model(folder / "model"))
    try:
        yield made
    finally:
        made.stop()


def _answer_of(said: Mapping[str, Any], text: str) -> Answer:
    engine = dict((said.get("nvext") or {}).get("engine_data") or {})
    return Answer(text, said.get("usage") or {}, engine.pop("semblend", None), engine)


def _until(holds: Any, what: str, process: Process) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if holds():
                return
        given_up = process.popen.poll() is not None or time.monotonic() > deadline
        assert not given_up, f"not so: {what}\n{process.log.read_text()[-3000:]}"
        time.sleep(0.1)


def _answers(port: int, path: str) -> bool:
    _get(port, path)
    return True


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read().decode()
