"""One attempt at one server: it ends with the beginning of an answer, or with the reason why there is none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

import aiohttp
from multidict import CIMultiDict

from semblend_dynamo.gateway.headers import RawHeaders, header

WHOLE_ANSWER = 1 << 20
"""An answer that is no stream is held back up to this size, so that a replica that breaks off can be replaced."""
_BEFORE_EVENTS = b"\r\n\xef\xbb\xbf"
_EVENT_OPENINGS = (b"data:", b":", b"event:", b"id:", b"retry:")


class Failure(StrEnum):
    CONNECT = "connect"
    """No connection came about."""
    TIMEOUT = "timeout"
    """Nothing came within the time to the first byte, or an answer that is no stream was not whole in time."""
    BROKEN = "broken"
    """The connection ended, or what came was no HTTP."""
    STATUS = "status"
    """An answer with status 500: the replica's fault, or the request's."""
    UNAVAILABLE = "unavailable"
    """An answer with status 502, 503 or 504."""
    BUSY = "busy"
    """An answer with status 429."""
    GARBAGE = "garbage"
    """An answer with status 200 that is neither JSON nor an event stream, or a redirection."""


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
    """To the first piece of a stream."""
    whole_s: float
    """To the end of an answer that is no stream: engines send nothing of it before."""
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
    _response: aiohttp.ClientResponse
    _stall_s: float

    async def rest(self) -> AsyncIterator[bytes]:
        """What follows ``first``, as much at a time as has come. BrokeOffError where it ends too early or stalls."""
        while not self.complete:
            try:
                async with asyncio.timeout(self._stall_s):
                    piece = await self._response.content.readany()
            except (aiohttp.ClientError, TimeoutError, OSError):
                raise BrokeOffError from None
            if not piece:
                return
            yield piece

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A connection whose answer was read to its end is back in the pool already; any other is of no more use.
        self._response.close()


@dataclass(frozen=True)
class Page:
    """A short answer to a GET, whole."""

    status: int
    content_type: str
    body: bytes


class Upstream:
    """Connections to servers, kept and used again. Made outside of a loop, it belongs to the first that uses it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def attempt(
        self, url: str, headers: RawHeaders, body: bytes, *, wants_stream: bool, judged: bool = True
    ) -> Answer:
        """Ask ``url``. AttemptFailedError: it gave no answer that a client should see, and another may be asked.

        Without ``judged`` any answer is one, whatever its status and its content.
        """
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(self._limits.first_byte_s if wants_stream else self._limits.whole_s):
                response = await self._ask(url, headers, body)
                return await self._begun(response, wants_stream, judged)
        except BaseException as error:
            if response is not None:
                response.close()
            if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
                raise AttemptFailedError(Failure.CONNECT) from None
            if isinstance(error, TimeoutError):
                raise AttemptFailedError(Failure.TIMEOUT) from None
            if isinstance(error, aiohttp.ClientError | OSError | ValueError):
                raise AttemptFailedError(Failure.BROKEN) from None
            raise

    async def page(self, url: str, headers: RawHeaders = (), *, timeout_s: float) -> Page:
        """What ``url`` shows. AttemptFailedError where that is nothing, or takes longer, or is no short answer."""
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._connections().get(url, headers=_sent(headers), allow_redirects=False) as response,
            ):
                body = b""
                while piece := await response.content.readany():
                    body += piece
                    if len(body) > WHOLE_ANSWER:
                        raise AttemptFailedError(Failure.GARBAGE)
                return Page(response.status, header(response.raw_headers, b"content-type"), body)
        except TimeoutError:
            raise AttemptFailedError(Failure.TIMEOUT) from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise AttemptFailedError(Failure.CONNECT) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, url: str, headers: RawHeaders, body: bytes) -> aiohttp.ClientResponse:
        post, sent = self._connections().post, _sent(headers)
        try:
            return await post(url, headers=sent, data=body, allow_redirects=False)
        except aiohttp.ServerDisconnectedError:
            # A kept connection may have been closed at the other end in this very moment: once more, by a new one.
            return await post(url, headers=sent, data=body, allow_redirects=False)

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self._open()
        return self._session

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            # No limit beside the admission's: it would only be a second queue that nobody sees.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_s),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent", "accept", "accept-encoding"),
            trust_env=False,
        )

    async def _begun(self, response: aiohttp.ClientResponse, wants_stream: bool, judged: bool) -> Answer:
        failure = _FAILED_STATUS.get(response.status)
        if judged and failure is not None:
            raise AttemptFailedError(failure, response.status)
        if judged and 300 <= response.status < 400:
            # It would send the client past the router, to an address inside the fleet.
            raise AttemptFailedError(Failure.GARBAGE, response.status)
        raw = response.raw_headers
        is_stream = header(raw, b"content-type").startswith("text/event-stream")
        first, complete = b"", False
        # A stream goes on with its first piece; anything else is waited for, as far as it is not too long.
        while not complete and len(first) < WHOLE_ANSWER and not (is_stream and _shows_what_it_is(first, judged)):
            piece = await response.content.readany()
            complete = not piece
            first += piece
        if judged and response.status == 200 and not _is_an_answer(first, complete, is_stream, wants_stream):
            raise AttemptFailedError(Failure.GARBAGE)
        return Answer(response.status, raw, first, complete, is_stream, response, self._limits.stall_s)


def _sent(headers: RawHeaders) -> CIMultiDict[str]:
    return CIMultiDict((name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in headers)


def _shows_what_it_is(first: bytes, judged: bool) -> bool:
    """Whether the beginning of a stream can be judged: the network may cut it anywhere, also inside its first word."""
    opening = first.lstrip(_BEFORE_EVENTS)
    if not judged:
        return bool(first)
    return not any(opening != known and known.startswith(opening) for known in _EVENT_OPENINGS)


def _is_an_answer(first: bytes, complete: bool, is_stream: bool, wants_stream: bool) -> bool:
    if is_stream:
        return wants_stream and first.lstrip(_BEFORE_EVENTS).startswith(_EVENT_OPENINGS)
    if not complete:
        return True
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False
