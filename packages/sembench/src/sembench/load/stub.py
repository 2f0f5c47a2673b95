"""A server whose timing is known, to check the generator against: ``python -m sembench.load.stub``.

It speaks enough of OpenAI's API to be loaded, runs no model, and writes into the first event when it received the
request and when it sent that event. The clock is the machine's monotonic one, which a generator on the same machine
shares.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MODEL = "stub"


@dataclass(frozen=True)
class Behaviour:
    """How the stub answers; the last four are faults to inject."""

    first_token_s: float = 0.2
    between_tokens_s: float = 0.05
    tokens: int = 40
    usage: bool = True
    hold_until: int = 0
    """Send no token before so many requests have been in flight at once."""
    fail_status: int | None = None
    """Answer requests with this status instead."""
    cut_after: int | None = None
    """Close the connection after so many tokens."""
    garble: bool = False
    """Send events that are no JSON."""
    die_after: int | None = None
    """End the process when so many requests have come."""


class StubServer:
    """Counts requests; every connection is one ``_Connection``."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests = 0
        self.in_flight = 0
        self.in_flight_max = 0
        self.prompts: list[str] = []
        self.held: list[Callable[[], None]] = []

    async def listen(self, port: int = 0) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _Connection(self), "127.0.0.1", port, backlog=1024)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, server: StubServer) -> None:
        self._server = server
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None
        self._serving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        self._ended()

    def data_received(self, data: bytes) -> None:
        received = time.monotonic()
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        length = _content_length(head)
        if not found or len(rest) < length:
            return
        body, self._buffer = rest[:length], rest[length:]
        self._answer(head.split(b" ", 2)[1].decode(), body, received)

    def _answer(self, path: str, body: bytes, received: float) -> None:
        if not path.endswith("completions"):
            known = path == "/v1/models"
            self._plain(200 if known else 404, {"data": [{"id": MODEL, "owned_by": "sembench"}]} if known else {})
            return
        server, behaviour = self._server, self._server.behaviour
        server.requests += 1
        if behaviour.die_after is not None and server.requests > behaviour.die_after:
            os._exit(1)
        asked = json.loads(body)
        if asked["model"] != MODEL:
            self._plain(404, {"error": {"message": f"no model {asked['model']}"}})
        elif behaviour.fail_status is not None:
            self._plain(behaviour.fail_status, {"error": {"message": "told to fail"}})
        else:
            server.prompts.append(asked.get("prompt") or asked["messages"][0]["content"])
            self._stream(asked, received)

    def _stream(self, asked: dict[str, Any], received: float) -> None:
        server, behaviour = self._server, self._server.behaviour
        self._serving = True
        server.in_flight += 1
        server.in_flight_max = max(server.in_flight_max, server.in_flight)
        tokens = min(behaviour.tokens, asked.get("max_tokens", behaviour.tokens))
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        server.held.append(lambda: self._begin(asked, received, tokens))
        if server.in_flight_max >= behaviour.hold_until:
            released, server.held = server.held, []
            for begin in released:
                begin()

    def _begin(self, asked: dict[str, Any], received: float, tokens: int) -> None:
        due = received + self._server.behaviour.first_token_s
        self._later(due, self._token, asked, received, due, 0, tokens)

    def _token(self, asked: dict[str, Any], received: float, due: float, number: int, tokens: int) -> None:
        behaviour = self._server.behaviour
        if behaviour.cut_after is not None and number >= behaviour.cut_after:
            self.transport.abort()
            return
        if number == tokens:
            self._finish(asked, tokens)
            return
        if behaviour.garble:
            self._chunk(b"data: {not json\n\n")
        elif number == 0:
            self._event({"choices": [_choice(asked)], "stub": [received, time.monotonic()]})
        else:
            # The same bytes each time: the stub must not take the time that is measured.
            self.transport.write(_LATER_TOKEN["messages" in asked])
        due += behaviour.between_tokens_s
        self._later(due, self._token, asked, received, due, number + 1, tokens)

    def _finish(self, asked: dict[str, Any], tokens: int) -> None:
        if self._server.behaviour.usage and asked.get("stream_options", {}).get("include_usage"):
            usage = {
                "prompt_tokens": 100,
                "completion_tokens": tokens,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self.transport.write(b"0\r\n\r\n")
        self._ended()

    def _ended(self) -> None:
        self._server.in_flight -= self._serving
        self._serving = False

    def _later(self, due: float, call: Any, *arguments: Any) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, due - time.monotonic()), call, *arguments)

    def _event(self, event: dict[str, Any]) -> None:
        self.transport.write(_chunk_of(event))

    def _chunk(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _plain(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)


def _choice(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": 0, "delta": {"content": " word"}} if "messages" in asked else {"index": 0, "text": " word"}


def _chunk_of(event: dict[str, Any]) -> bytes:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


_LATER_TOKEN = {chat: _chunk_of({"choices": [_choice({"messages": ()} if chat else {})]}) for chat in (False, True)}


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


async def _serve(behaviour: Behaviour, port: int) -> None:
    stub = StubServer(behaviour)
    server = await stub.listen(port)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Ends with the process that started it, which holds the other end of standard input.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(json.dumps({"requests": stub.requests, "in_flight_max": stub.in_flight_max}), flush=True)


def main() -> None:
    """Prints the port, serves until standard input ends, then prints what it counted as one line of JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=0)
    for name, kind, default in (
        ("first-token-s", float, Behaviour.first_token_s),
        ("between-tokens-s", float, Behaviour.between_tokens_s),
        ("tokens", int, Behaviour.tokens),
        ("hold-until", int, Behaviour.hold_until),
        ("fail-status", int, None),
        ("cut-after", int, None),
        ("die-after", int, None),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--garble", action="store_true")
    parser.add_argument("--no-usage", dest="usage", action="store_false")
    options = vars(parser.parse_args())
    port = options.pop("port")
    asyncio.run(_serve(Behaviour(**options), port))


if __name__ == "__main__":
    main()
