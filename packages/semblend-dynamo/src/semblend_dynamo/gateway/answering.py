"""Passing an answer on to the client, and noting on the way what it tells about itself."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from semblend_dynamo.gateway.bodies import ClientLeftError, Send
from semblend_dynamo.gateway.errors import Refusal
from semblend_dynamo.gateway.headers import to_client
from semblend_dynamo.gateway.upstream import Answer, BrokeOffError

_BROKE_OFF = {"message": "the replica broke off its answer", "type": "upstream_error", "code": "broke_off"}
_BREAK_EVENT = b"\n\ndata: " + json.dumps({"error": _BROKE_OFF}).encode() + b"\n\n"
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,9})')
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,9})')


@dataclass
class Told:
    """What an answer said of itself. None: nothing."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """The engine's own count: exact and relocated tokens together."""
    first_byte_at: float | None = None
    """``time.perf_counter()`` when the client was sent the first piece."""
    pieces: int = 0
    broke_off: bool = False
    tail: bytes = b""
    """The last bytes of a stream."""

    @property
    def has_ended(self) -> bool:
        """Whether a stream said that nothing follows: its replica may close the connection as it likes."""
        return self.tail.rstrip().endswith(b"data: [DONE]")

    def read(self, piece: bytes) -> None:
        self.tail = (self.tail + piece[-32:])[-32:]
        if b'"usage"' not in piece:
            return
        if found := _PROMPT.search(piece):
            self.prompt_tokens = int(found[1])
        if found := _CACHED.search(piece):
            self.cached_tokens = int(found[1])


async def pass_on(answer: Answer, send: Send, added: Iterable[tuple[bytes, bytes]], stall_s: float) -> Told:
    """Send the answer. A client that takes nothing for ``stall_s`` is left, with ClientLeftError."""
    told = Told()
    headers = to_client(answer.headers, added)
    if answer.complete:
        headers.append((b"content-length", str(len(answer.first)).encode()))
    try:
        async with asyncio.timeout(stall_s) as patience:
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": answer.first, "more_body": not answer.complete})
            told.first_byte_at = time.perf_counter()
            told.pieces = 1
            told.read(answer.first)
            if answer.complete:
                return told
            patience.reschedule(None)
            async for piece in answer.rest():
                patience.reschedule(asyncio.get_running_loop().time() + stall_s)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                patience.reschedule(None)
                told.pieces += 1
                told.read(piece)
    except TimeoutError:
        raise ClientLeftError from None
    except BrokeOffError:
        told.broke_off = not (answer.is_stream and told.has_ended)
        if not answer.is_stream:
            # Half a JSON document must not look whole: without its last chunk the server closes the connection.
            return told
        if told.broke_off:
            await send({"type": "http.response.body", "body": _BREAK_EVENT, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return told


async def refuse(refusal: Refusal, send: Send, added: Iterable[tuple[bytes, bytes]] = ()) -> None:
    body = refusal.body()
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *added]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
