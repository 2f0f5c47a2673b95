"""The client that puts the load on: streams on kept-alive connections, timed where their bytes arrive."""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sembench.load.answer import Answer, AnswerReader
from sembench.load.http1 import ProtocolError, ResponseDecoder

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Target:
    """Where requests go and what is the same in all of them."""

    url: str
    """The server's root, without ``/v1``."""
    model: str
    template: str = "completion"
    """``chat`` sends the prompt as a message."""
    max_output_tokens: int = 64
    timeout_s: float = 120.0
    tenant: str = "sembench"
    api_key: str | None = None
    seed: int = 0
    salt: str | None = None
    """The tenant, where the server takes it as cache salt."""


class LoadClient:
    """Never raises for what a server does: an answer tells its own failure."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.in_flight = 0
        self._idle: list[_ClientConnection] = []
        parts = urlsplit(target.url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        path = "/v1/chat/completions" if target.template == "chat" else "/v1/completions"
        key = f"Authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
        # Compression would hold tokens back until a block of it is full.
        self._head = (
            f"POST {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\nAccept-Encoding: identity\r\nx-tenant-id: {target.tenant}\r\n{key}"
        )

    def prepare(self, prompt: str) -> bytes:
        """The whole request, so that nothing but the sending is left when it is due."""
        target = self.target
        asked: dict[str, Any] = {
            "model": target.model,
            "max_tokens": target.max_output_tokens,
            "temperature": 0,
            "seed": target.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if target.template == "chat":
            asked["messages"] = [{"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        if target.salt is not None:
            asked["cache_salt"] = target.salt
        body = json.dumps(asked).encode()
        name = f"sb-load-{secrets.token_hex(8)}"
        ours = f"X-Request-Id: {name}\r\nx-session-id: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
        return f"{self._head}{ours}".encode() + body

    async def send(self, request: bytes, due: float) -> Answer:
        answer = Answer(due)
        self.in_flight += 1
        try:
            connection = self._take_idle()
            if connection is not None:
                await connection.exchange(request, answer, self.target.timeout_s)
                if not connection.went_stale:
                    return answer
                # The server had closed the kept connection before it saw the request: that is no failure of an answer.
                answer = Answer(due, sent=answer.sent)
            connection = await self._connect(answer)
            if connection is not None:
                await connection.exchange(request, answer, self.target.timeout_s)
            return answer
        finally:
            self.in_flight -= 1

    async def open_connections(self, wanted: int) -> None:
        """Have so many connections ready, as far as the server lets us."""
        missing = range(max(0, wanted - len(self._idle)))
        opened = await asyncio.gather(*(self._connect(Answer(time.monotonic())) for _ in missing))
        self._idle += [connection for connection in opened if connection is not None]

    async def reachable(self) -> bool:
        connection = await self._connect(Answer(time.monotonic()))
        if connection is not None:
            connection.abort()
        return connection is not None

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _connect(self, answer: Answer) -> _ClientConnection | None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(min(CONNECT_TIMEOUT_S, self.target.timeout_s)):
                _, connection = await loop.create_connection(
                    lambda: _ClientConnection(self._idle), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            answer.fail("connect", "no connection in time", time.monotonic())
            return None
        except OSError as error:
            answer.fail("connect", error.strerror or str(error), time.monotonic())
            return None
        return connection

    def _take_idle(self) -> _ClientConnection | None:
        return self._idle.pop() if self._idle else None


class _ClientConnection(asyncio.Protocol):
    """One connection; carries one exchange at a time and goes back to ``idle`` when it can carry another."""

    _transport: asyncio.Transport

    def __init__(self, idle: list[_ClientConnection]) -> None:
        self._idle = idle
        self._reader: AnswerReader | None = None
        self._decoder = ResponseDecoder()
        self._done: asyncio.Future[None] | None = None
        self._heard = False
        self.went_stale = False

    async def exchange(self, request: bytes, answer: Answer, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._reader, self._decoder, self._done = AnswerReader(answer), ResponseDecoder(), loop.create_future()
        self._heard = False
        if self._transport.is_closing():
            self.went_stale = True
            return
        timer = loop.call_later(timeout_s, self._fail, "timeout", f"no complete answer within {timeout_s:g} s")
        answer.sent = answer.sent or time.monotonic()
        self._transport.write(request)
        try:
            await self._done
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            timer.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        # First of all: what follows takes time of ours, not of the server.
        now = time.monotonic()
        if self._reader is None:
            self.abort()
            return
        self._heard = True
        try:
            pieces = self._decoder.feed(data)
        except ProtocolError as error:
            self._fail("malformed", str(error))
            return
        for piece in pieces:
            self._reader.take(self._decoder.status or 0, piece, now)
        if self._decoder.complete:
            self._finish(now)
        elif self._reader.answer.error is not None:
            self._fail("", "")

    def connection_lost(self, error: Exception | None) -> None:
        if self._reader is None:
            if self in self._idle:
                self._idle.remove(self)
            return
        if self._decoder.end_of_input():
            self._finish(time.monotonic())
            return
        # A kept connection that closes without a word had been closed before the request reached the server.
        self.went_stale = not self._heard
        self._fail("disconnected", str(error or "the server closed the connection before the answer ended"))

    def _finish(self, now: float) -> None:
        assert self._reader is not None
        self._reader.end(self._decoder.status or 0, now)
        self._reader = None
        if self._decoder.keeps_alive and not self._transport.is_closing():
            self._idle.append(self)
        else:
            self.abort()
        self._resolve()

    def _fail(self, kind: str, detail: str) -> None:
        if self._reader is not None:
            self._reader.answer.fail(kind, detail, time.monotonic())
            self._reader = None
        self.abort()
        self._resolve()

    def _resolve(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
