"""vLLM's OpenAI server with SemBlend, in processes of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from semblend_core.testing import records_so_far, shallow_model_folder, wait_until

BLOCK = 32
OPERATORS_TOKEN = "a token for operators"
FORKING_SERVER = Path(__file__).parent / "helpers" / "forking_server.py"


@dataclass(frozen=True)
class Asked:
    text: str
    logprobs: tuple[dict[str, float], ...]
    prompt_tokens: int
    cached_tokens: int
    confirmed_tokens: int
    declined: list[str]
    """Reasons."""


@dataclass(frozen=True)
class Server:
    """vLLM's OpenAI server in processes of its own, as users run it."""

    client: httpx.Client
    audit: Path
    log: Path
    process: subprocess.Popen[bytes]
    model: str = "smollm2"

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    def ask(self, prompt: str, *, tokens: int = 6, **more: Any) -> Any:
        body = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "cache_salt": "http"}
        answer = self.client.post("/v1/completions", json={**body, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def control(self, command: str, salt: str) -> dict[str, Any]:
        """What an operator's command prints."""
        told = subprocess.run(
            [sys.executable, "-m", "semblend_core.control", command, "--dir", str(self.audit.parent / "control")],
            input=salt,
            capture_output=True,
            text=True,
        )
        assert told.returncode == 0, told.stderr
        return dict(json.loads(told.stdout))

    def control_over_http(self, command: str, salt: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {OPERATORS_TOKEN}"}
        answer = self.client.post(f"/semblend/tenants/{command}", json={"salt": salt}, headers=headers)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def stop(self) -> None:
        _stop(self.process)

    def reused(self, prompt: str, **more: Any) -> Asked:
        """Ask, and what the audit stream says became of it."""
        wish = str(more.get("kv_transfer_params", {}).get("semblend", "on"))
        counted = {name: len(self._of_requests(name)) for name in ("materialized", "declined")}
        ended = self._ended(wish)
        answer = self.ask(prompt, logprobs=20, return_tokens_as_token_ids=True, **more)
        if wish != "off":  # Records are written in the background.
            self._wait_until(lambda: self._ended(wish) > ended, "the request's end is on record")
        landed = self._of_requests("materialized")[counted["materialized"] :]
        declined = [str(record["reason"]) for record in self._of_requests("declined")[counted["declined"] :]]
        choice, usage = answer["choices"][0], answer["usage"]
        return Asked(
            text=choice["text"],
            logprobs=tuple(choice["logprobs"]["top_logprobs"]),
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=(usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
            confirmed_tokens=sum(int(record["tokens"]) for record in landed),
            declined=declined,
        )

    def counter(self, name: str, **labels: str) -> float:
        """The sum over all series of that name which have these labels."""
        text = self.client.get("/metrics").text
        series = re.findall(rf"^{name}(?:\{{([^}}]*)\}})? ([0-9.e+]+)$", text, re.MULTILINE)
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(value) for found, value in series if all(each in found for each in wanted))

    def records(self, event: str) -> list[dict[str, Any]]:
        """What the audit stream tells of it so far."""
        return [record for record in records_so_far(self.audit) if record["event"] == event]

    def keep(self, prompt: str, **more: Any) -> None:
        """Serve a donor, and wait until it can be found. No other request is needed for that."""
        donors = len(self.records("donor_registered"))
        self.ask(prompt, tokens=1, **more)
        self._wait_until(lambda: len(self.records("donor_registered")) > donors, "a donor of a prompt that was served")

    def _ended(self, wish: str) -> int:
        """How many requests with this wish have ended. One that vLLM's own cache serves ends with its lookup."""
        served = [record for record in self.records("lookup") if record["reason"] == "exact_prefix_covers"]
        last = "plan" if wish == "discovery" else "materialized"
        return len(self._of_requests("declined")) + len(self._of_requests(last)) + len(served)

    def _of_requests(self, event: str) -> list[dict[str, Any]]:
        """Donors are declined too."""
        return [record for record in self.records(event) if record["request_id"] is not None]

    def _wait_until(self, happened: Callable[[], bool], what: str) -> None:
        def happened_while_it_runs() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            return happened()

        wait_until(happened_while_it_runs, what)


NewServer = Callable[..., AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def new_server(environment: None, tmp_path_factory: pytest.TempPathFactory) -> NewServer:
    """``with new_server(settings, *flags) as server``, started as users do: the connector's name, and nothing else.

    Without ``scheduler`` vLLM is told to keep its own.

    ``whole``: all of SmolLM2, for its answers; otherwise its first layers.

    ``spawns``: also its processes are started as users' are; otherwise they are forked, which is quicker.
    """

    @contextmanager
    def started(
        settings: dict[str, str], *flags: str, scheduler: bool = True, whole: bool = False, spawns: bool = False
    ) -> Iterator[Server]:
        folder = tmp_path_factory.mktemp("server")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        program = ("-m", "vllm.entrypoints.openai.api_server") if spawns else (str(FORKING_SERVER),)
        command = [sys.executable, *program, *_server_options(port, whole), *flags]
        command += [] if scheduler else ["--scheduler-cls", "vllm.v1.core.sched.async_scheduler.AsyncScheduler"]
        # Resets of the prefix cache are for developers: sembench proves with them that a request was cold.
        variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_SERVER_DEV_MODE": "1", **_for_operators(folder)}
        variables |= {"SEMBLEND_AUDIT_PATH": str(folder / "audit.jsonl"), **settings}
        with (folder / "log").open("wb") as output:
            # A session of its own, so that the engine's processes end with the server.
            process = subprocess.Popen(
                command, env={**os.environ, **variables}, stdout=output, stderr=output, start_new_session=True
            )
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=None) as client:
                try:
                    _wait_until_up(client, process, folder / "log")
                    yield Server(client, folder / "audit.jsonl", folder / "log", process)
                finally:
                    _stop(process)

    return started


@pytest.fixture(scope="session")
def server(new_server: NewServer) -> Iterator[Server]:
    with new_server({}, whole=True, spawns=True) as started:
        yield started


def _for_operators(folder: Path) -> dict[str, str]:
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(OPERATORS_TOKEN)
    return {
        "VLLM_PLUGINS": "semblend",
        "SEMBLEND_CONTROL_DIR": str(folder / "control"),
        "SEMBLEND_VLLM_CONTROL_TOKEN_FILE": str(token),
    }


def _server_options(port: int, whole: bool) -> list[str]:
    from semblend_core.reference import default_model_folder

    folder = default_model_folder() if whole else shallow_model_folder()
    connector = {"kv_connector": "SemBlendConnectorV1", "kv_role": "kv_both"}
    return [
        *("--model", str(folder), "--served-model-name", "smollm2"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"),
        *("--block-size", str(BLOCK), "--max-model-len", "2048", "--max-num-batched-tokens", "2048"),
        *("--max-num-seqs", "8", "--enable-prompt-tokens-details", "--kv-transfer-config", json.dumps(connector)),
    ]


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _wait_until_up(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            return client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(answers, "the server answers")
