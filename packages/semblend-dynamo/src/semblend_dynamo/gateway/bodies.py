"""Reading a request's body: within a size, within a time, and all bodies together within a budget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from semblend_dynamo.gateway.errors import Refusal, too_busy

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


LARGE_BODY = 64 << 10
"""A body above this is read on a thread."""
MOST_VALUES = 2 << 20
"""Of one body, counted by the marks between them. A prompt of a million token ids fits; parsed, an empty object takes
thirty times the room that it had in the body."""


class ClientLeftError(Exception):
    """The client closed the connection: there is nobody to answer."""


class BodyMemory:
    """The bytes of all bodies that are held at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        if self.held + size > self.limit:
            raise too_busy("the bodies of the requests under way fill the memory that is set aside for them")
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size


class BodyReader:
    def __init__(self, limit: int, timeout_s: float, memory: BodyMemory) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._memory = memory

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body. It stays on the memory's account until ``give_back``; a refused one does not."""
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit:
            raise self._too_large()
        taken = 0
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeftError
                    part: bytes = message.get("body", b"")
                    if taken + len(part) > self._limit:
                        raise self._too_large()
                    self._memory.take(len(part))
                    taken += len(part)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except BaseException as error:
            self._memory.give_back(taken)
            if isinstance(error, TimeoutError):
                raise Refusal(408, "body_too_slow", f"the body did not arrive within {self._timeout_s:g} s") from None
            raise

    def give_back(self, body: bytes) -> None:
        self._memory.give_back(len(body))

    def _too_large(self) -> Refusal:
        return Refusal(413, "body_too_large", f"a body may have {self._limit} bytes")


async def parse_beside(body: bytes) -> dict[str, Any]:
    """As ``parse_object``; a large body on a thread, so that others need not wait for it."""
    return parse_object(body) if len(body) <= LARGE_BODY else await asyncio.to_thread(parse_object, body)


def parse_object(body: bytes) -> dict[str, Any]:
    """The body's JSON object, or a Refusal. The parser's message stays out: it could quote the prompt."""
    if len(body) > MOST_VALUES and sum(map(body.count, (b",", b"{", b"["))) > MOST_VALUES:
        raise Refusal(413, "too_many_values", f"a body may have {MOST_VALUES} values")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "malformed_json", "the body is not valid JSON") from None
    if not isinstance(asked, dict):
        raise Refusal(400, "malformed_json", "the body is not a JSON object")
    return asked
