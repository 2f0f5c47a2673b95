"""One attempt at one server: it ends with the beginning of an answer, or with the reason why there is none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

import httpx

from semblend_dynamo.gateway.headers import RawHeaders, header

WHOLE_ANSWER = 1 << 20
"""An answer that is no stream is held back up to this size, so that a replica that breaks off can be replaced."""
_EVENT_OPENINGS = (b"data:", b":", b"event:", b"id:", b"retry:")


class Failure(StrEnum):
    CONNECT = "connect"
    """No connection came about."""
    TIMEOUT = "timeout"
    """Nothing came within the time to the first byte."""
    BROKEN = "broken"
    """The connection ended, or what came was no HTTP."""
    STATUS = "status"
    """An answer with status 500: the replica's fault, or the request's."""
    UNAVAILABLE = "unavailable"
    """An answer with status 502, 503 or 504."""
    BUSY = "busy"
    """An answer with status 429."""
    GARBAGE = "garbage"
    """An answer with status 200 that is neither JSON nor an event stream."""


class AttemptFailedError(Exception):
    def __init__(self, failure: Failure, status: int | None = None) -> None:
        super().__init__(failure.value if status is None else f"{failure.value} {status}")
        self.failure = failure
        self.status = status


class BrokeOffError(Exception):
    """A replica ended its answer before the end, after the client had some of it."""


_FAILED_STATUS = {
    429: Failure.BUSY,
    500: Failure.STATUS,
    **dict.fromkeys((502, 503, 504), Failure.UNAVAILABLE),
}


@dataclass(frozen=True)
class Limits:
    connect_s: float
    first_byte_s: float
    stall_s: float


@dataclass
class Answer:
    """A replica's answer, of which at least the first piece is there. Use it as a context manager."""

    status: int
    headers: RawHeaders
    first: bytes
    """The first piece of a stream, or the whole of a short answer."""
    complete: bool
    """``first`` is all there is."""
    is_stream: bool
    """Server-sent events."""
    _response: httpx.Response
    _pieces: AsyncIterator[bytes] = field(repr=False)
    _stall_s: float = 60.0

    async def rest(self) -> AsyncIterator[bytes]:
        """What follows ``first``. BrokeOffError where it ends too early or stalls."""
        while not self.complete:
            try:
                async with asyncio.timeout(self._stall_s):
                    piece = await anext(self._pieces, None)
            except (httpx.HTTPError, httpx.StreamError, TimeoutError):
                raise BrokeOffError from None
            if piece is None:
                return
            yield piece

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._response.aclose()


async def attempt(
    client: httpx.AsyncClient,
    url: str,
    headers: RawHeaders,
    body: bytes,
    limits: Limits,
    *,
    wants_stream: bool,
    judged: bool = True,
) -> Answer:
    """Ask ``url``. AttemptFailedError: it gave no answer that a client should see, and another may be asked.

    Without ``judged`` any answer is one, whatever its status and its content.
    """
    timeout = httpx.Timeout(connect=limits.connect_s, read=None, write=limits.stall_s, pool=limits.connect_s)
    response: httpx.Response | None = None
    try:
        async with asyncio.timeout(limits.first_byte_s):
            request = client.build_request("POST", url, headers=list(headers), content=body, timeout=timeout)
            response = await client.send(request, stream=True)
            return await _begun(response, limits, wants_stream, judged)
    except BaseException as error:
        if response is not None:
            await response.aclose()
        if isinstance(error, TimeoutError):
            raise AttemptFailedError(Failure.TIMEOUT) from None
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
            raise AttemptFailedError(Failure.CONNECT) from None
        if isinstance(error, httpx.HTTPError | httpx.StreamError | httpx.InvalidURL):
            raise AttemptFailedError(Failure.BROKEN) from None
        raise


async def _begun(response: httpx.Response, limits: Limits, wants_stream: bool, judged: bool) -> Answer:
    failure = _FAILED_STATUS.get(response.status_code)
    if judged and failure is not None:
        raise AttemptFailedError(failure, response.status_code)
    raw = response.headers.raw
    is_stream = header(raw, b"content-type").startswith("text/event-stream")
    pieces = response.aiter_raw()
    first, complete = b"", False
    # A stream goes on with its first piece; anything else is waited for, as far as it is not too long.
    while not complete and (len(first) < WHOLE_ANSWER if not is_stream else not first):
        piece = await anext(pieces, None)
        complete = piece is None
        first += piece or b""
    if judged and response.status_code == 200 and not _is_an_answer(first, complete, is_stream, wants_stream):
        raise AttemptFailedError(Failure.GARBAGE)
    return Answer(response.status_code, raw, first, complete, is_stream, response, pieces, limits.stall_s)


def _is_an_answer(first: bytes, complete: bool, is_stream: bool, wants_stream: bool) -> bool:
    if is_stream:
        return wants_stream and first.lstrip(b"\r\n\xef\xbb\xbf").startswith(_EVENT_OPENINGS)
    if not complete:
        return True
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False
