"""A small deterministic server for faults that a real engine cannot be made to show on demand.

It answers as vLLM does, keeps a prefix cache in words, and breaks in the way a test asks for.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

BLOCK = 4
"""Words of a block of the stub's cache."""


@dataclass
class Seen:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    prompt: str

    @property
    def prepares(self) -> bool:
        return self.headers["x-request-id"].startswith(("sb-preflight-", "sb-warmup-"))

    @property
    def is_warm(self) -> bool:
        return "-warm-" in self.headers["x-request-id"]


@dataclass
class Stub:
    """What the server does, changed by tests, and what it saw."""

    url: str = ""
    models: tuple[str, ...] = ("tiny",)
    fault: Callable[[Seen, int], str | None] = lambda seen, number: None
    """Given a request and how many there were before it, the name of a fault or None."""
    answer: Callable[[Seen], str] | None = None
    events: Callable[[Seen, list[str]], list[str]] = lambda seen, events: events
    """Given a request of the replay and the events of its answer, those to send."""
    answer_headers: dict[str, str] = field(default_factory=dict)
    route: Callable[[Seen], dict[str, str]] = lambda seen: {}
    """Headers that tell of a router's decision."""
    worker: Callable[[Seen], Any] = lambda seen: None
    """What Dynamo's ``worker_id`` says to who asks for it."""
    owner: str = "stub"
    """Who ``/v1/models`` says it is."""
    version: tuple[int, bytes] = (200, b'{"version": "1.2.3"}')
    """What ``/version`` answers."""
    refuses_salts: bool = False
    usage: bool = True
    cached: str = "reported"
    """``reported``, ``zero omitted`` or ``absent``."""
    salts: bool = True
    resets: bool = True
    reset_empties: bool = True
    """Otherwise a reset is obeyed in words only."""
    reset_refusals: int = 0
    """How many resets answer that blocks are still held."""
    always_cached: int = 0
    """Claimed for every request, whatever the cache holds."""
    streams: bool = True
    incremental: bool = False
    delay_s: float = 0.0
    on_request: Callable[[Seen, int], None] = lambda seen, cached: None
    seen: list[Seen] = field(default_factory=list)
    resets_done: int = 0
    cache: dict[str, list[list[str]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def served(self) -> list[Seen]:
        """Requests of the replay, without those that prepare it."""
        return [seen for seen in self.seen if not seen.prepares]

    def ids(self) -> list[str]:
        """The roles in the order served, such as donor0 and warm."""
        return [seen.headers["x-request-id"].split("-")[3] for seen in self.served]

    def cached_words(self, seen: Seen) -> int:
        salt = seen.body.get("cache_salt") or seen.body.get("extra_key") or ""
        known = self.cache.setdefault(salt if self.salts else "", [])
        words = seen.prompt.split()
        best = max((_common(words, other) for other in known), default=0)
        known.append(words)
        return max(best // BLOCK * BLOCK, self.always_cached)


def _common(first: list[str], second: list[str]) -> int:
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    return same


class _Handler(BaseHTTPRequestHandler):
    stub: Stub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        stub = self.stub
        if self.path == "/version":
            self._send(stub.version[1], stub.version[0])
            return
        answers = {
            "/v1/models": {"data": [{"id": name, "owned_by": stub.owner} for name in stub.models]},
            "/get_server_info": {"version": "4.5.6", "stream_output": stub.incremental},
        }
        self._json(answers.get(self.path, {}), 200 if self.path in answers else 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        path = self.path.split("?")[0]
        if path in ("/reset_prefix_cache", "/flush_cache"):
            self._reset()
        elif path in ("/v1/completions", "/v1/chat/completions", "/generate"):
            self._serve(path, body)
        else:
            self._json({"error": "no such path"}, 404)

    def _reset(self) -> None:
        stub = self.stub
        if not stub.resets:
            self._json({}, 404)
        elif stub.reset_refusals:
            stub.reset_refusals -= 1
            self._json({"success": False}, 200)
        else:
            stub.resets_done += 1
            if stub.reset_empties:
                stub.cache.clear()
            self._json({"success": True}, 200)

    def _serve(self, path: str, body: dict[str, Any]) -> None:
        stub = self.stub
        prompt = body.get("prompt") or body.get("text") or body["messages"][0]["content"]
        seen = Seen(path, {name.lower(): value for name, value in self.headers.items()}, body, prompt)
        with stub.lock:
            number = len(stub.served)
            stub.seen.append(seen)
            fault = None if seen.prepares else stub.fault(seen, number)
            cached = stub.cached_words(seen) if fault not in ("400", "429", "500") else 0
        stub.on_request(seen, cached)
        time.sleep(stub.delay_s)
        if stub.refuses_salts and "cache_salt" in body:
            self._json({"error": {"message": "cache_salt: unknown field"}}, 400)
        elif fault in ("400", "429", "500"):
            self._json({"error": {"message": f"the stub says {fault}"}}, int(fault))
        elif fault == "hang":
            stub.closing.wait(60)
            self.close_connection = True
        elif fault == "not a stream" or not stub.streams:
            self._json({"choices": [{"text": "all at once"}]}, 200)
        else:
            self._stream(seen, cached, fault)

    def _stream(self, seen: Seen, cached: int, fault: str | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        for name, value in {**self.stub.answer_headers, **self.stub.route(seen)}.items():
            self.send_header(name, value)
        self.end_headers()
        text = self.stub.answer(seen) if self.stub.answer else _answer(seen.prompt)
        events = (
            self._generate_events(seen, text, cached) if seen.path == "/generate" else self._events(seen, text, cached)
        )
        for number, event in enumerate(events if seen.prepares else self.stub.events(seen, list(events))):
            if fault == "truncated" and number == 2:
                self.close_connection = True
                return
            if fault == "malformed" and number == 1:
                event = "{not json"
            if fault == "error in stream" and number == 1:
                event = json.dumps({"error": {"message": "out of blocks", "code": 500}})
            self._chunk(f"data: {event}\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _events(self, seen: Seen, text: str, cached: int) -> Iterator[str]:
        chat = seen.path.endswith("chat/completions")
        words = text.split(" ")[: seen.body["max_tokens"]]
        yield json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}} if chat else {"text": ""}]})
        for number, word in enumerate(words):
            piece = word if number == 0 else f" {word}"
            choice: dict[str, Any] = {"delta": {"content": piece}} if chat else {"text": piece}
            if seen.body.get("logprobs"):
                choice["logprobs"] = {"tokens": [piece], "token_logprobs": [-0.5]}
            choice["finish_reason"] = "length" if number == len(words) - 1 else None
            yield json.dumps({"choices": [choice]}, ensure_ascii=False)
        if self.stub.usage:
            usage: dict[str, Any] = {"prompt_tokens": len(seen.prompt.split()), "completion_tokens": len(words)}
            if self.stub.cached == "reported" or (self.stub.cached == "zero omitted" and cached):
                usage["prompt_tokens_details"] = {"cached_tokens": cached}
            asked = "worker_id" in seen.body.get("nvext", {}).get("extra_fields", [])
            told = {"nvext": {"worker_id": self.stub.worker(seen)}} if asked else {}
            yield json.dumps({"choices": [], "usage": usage, **told})
        yield "[DONE]"

    def _generate_events(self, seen: Seen, text: str, cached: int) -> Iterator[str]:
        words = text.split(" ")[: seen.body["sampling_params"]["max_new_tokens"]]
        for number in range(len(words)):
            new = words[number] if number == 0 else f" {words[number]}"
            text = new if self.stub.incremental else " ".join(words[: number + 1])
            meta = {
                "prompt_tokens": len(seen.prompt.split()),
                "completion_tokens": number + 1,
                "cached_tokens": cached,
                "finish_reason": {"type": "length"} if number == len(words) - 1 else None,
            }
            yield json.dumps(
                {"text": new if self.stub.incremental else " ".join(words[: number + 1]), "meta_info": meta}
            )
        yield "[DONE]"

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, document: dict[str, Any], status: int) -> None:
        self._send(json.dumps(document).encode(), status)

    def _send(self, data: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _answer(prompt: str) -> str:
    """The same for the same prompt, whatever the cache held."""
    return f"answer {hashlib.sha256(prompt.encode()).hexdigest()[:8]} is what it says"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed or gave up is part of these tests."""


@pytest.fixture
def start_stub() -> Iterator[Callable[..., Stub]]:
    servers: list[tuple[_Server, Stub]] = []

    def start(**behaviour: Any) -> Stub:
        stub = Stub(**behaviour)
        handler = type("Handler", (_Handler,), {"stub": stub})
        server = _Server(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append((server, stub))
        stub.url = f"http://127.0.0.1:{server.server_address[1]}"
        return stub

    yield start
    for server, stub in servers:
        stub.closing.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def stub(start_stub: Callable[..., Stub]) -> Stub:
    return start_stub()


def item_line(number: int, transform: str = "instruction_variant", donors: int = 1) -> dict[str, Any]:
    """An item whose donor and recipient share a document behind different instructions."""
    document = " ".join(f"fact{number}x{word}" for word in range(24))
    return {
        "item_id": f"{number:016x}",
        "dataset": "made",
        "source_id": f"source-{number}",
        "transform": transform,
        "donor_prompts": [
            {
                "donor_id": f"{number * 16 + index + 256:016x}",
                "text": f"Summarize {index}: {document}",
                "label": "donor",
            }
            for index in range(donors)
        ],
        "recipient_prompt": f"List: {document} What is it?",
        "input": "What is it?",
        "answers": [f"answer {number}"],
        "negative_control": transform == "negative_control",
        "benchmark_version": "sembench.manifest.v1",
    }


@pytest.fixture
def write_manifest(tmp_path: Path) -> Callable[..., Path]:
    def write(items: int = 3, name: str = "manifest.jsonl", **fields: Any) -> Path:
        path = tmp_path / name
        lines = [json.dumps(item_line(number, **fields), sort_keys=True) for number in range(items)]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def sembench() -> Callable[..., Result]:
    """Runs a command line in this process."""
    from sembench.cli import main

    def run(*words: object) -> Result:
        return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)

    return run


@pytest.fixture
def gateway_run(
    stub: Stub, write_manifest: Callable[..., Path], tmp_path: Path, sembench: Any
) -> Callable[..., Result]:
    """``run-live-gateway`` against the stub; the result is in ``result.json``."""

    def run(*words: object, items: int = 3, **fields: Any) -> Result:
        manifest = write_manifest(items, **fields)
        common = ("--manifest", manifest, "--output", tmp_path / "result.json")
        common += ("--post-donor-delay-ms", 0)  # the stub keeps what it has served at once
        return sembench("run-live-gateway", *common, "--gateway-url", stub.url, "--model", "tiny", *words)

    return run


@pytest.fixture
def read_result(tmp_path: Path) -> Callable[[], Any]:
    from sembench.schema import Result as SembenchResult
    from sembench.schema import read_json

    return lambda: read_json(tmp_path / "result.json", SembenchResult)
