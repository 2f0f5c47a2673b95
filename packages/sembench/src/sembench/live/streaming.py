"""Server-sent events over httpx, timed from the moment the request goes out, and why a request failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from sembench.openai_events import EventCutter, mend_text

_RETRYABLE_STATUS = 429
"""Besides everything from 500 up: the server asks to come back later."""
_QUOTED = 200
_SENDING = frozenset({"http11.send_request_headers.started", "http2.send_request_headers.started"})


class RequestFailedError(Exception):
    """No answer that can be measured. The message is what the record will say."""

    def __init__(self, reason: str, *, retryable: bool, status: int | None = None) -> None:
        super().__init__(mend_text(reason))
        self.retryable = retryable
        self.status = status
        """The HTTP status, where one came."""


def failure_of_response(response: httpx.Response) -> RequestFailedError:
    """For a response other than 200, whose body has been read."""
    said = " ".join(response.text.split())[:_QUOTED]
    return failure_of_status(response.status_code, said)


def failure_of_status(status: int, said: str) -> RequestFailedError:
    retryable = status >= 500 or status == _RETRYABLE_STATUS
    return RequestFailedError(f"HTTP {status}: {said or 'no message'}", retryable=retryable, status=status)


def failure_of_transport(error: httpx.HTTPError) -> RequestFailedError:
    """The connection was refused, broke, or was never answered."""
    return RequestFailedError(f"{type(error).__name__}: {error or 'no message'}", retryable=True)


def malformed(what: str) -> RequestFailedError:
    """The server speaks another protocol: it would do so again."""
    return RequestFailedError(f"malformed answer: {what[:_QUOTED]}", retryable=False)


class _SendClock:
    """Notes when the request's first byte is written: waiting for a connection is the harness's time."""

    def __init__(self) -> None:
        self.sent_at = time.perf_counter()

    async def note(self, event: str, info: Mapping[str, Any]) -> None:
        if event in _SENDING:
            self.sent_at = time.perf_counter()


class EventStream:
    """The events of one response. ``ms_since_sent`` turns an arrival into milliseconds after the sending."""

    def __init__(self, response: httpx.Response, clock: _SendClock) -> None:
        self._response = response
        self._clock = clock
        self.headers = response.headers

    def ms_since_sent(self, moment: float) -> float:
        return (moment - self._clock.sent_at) * 1000

    async def events(self) -> AsyncIterator[tuple[float, str]]:
        """When each event's bytes arrived, and its data."""
        cutter = EventCutter()
        async for chunk in self._response.aiter_bytes():
            arrived = time.perf_counter()
            for data in cutter.feed(chunk):
                yield arrived, _text(data)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed(f"an event is not UTF-8: {error}") from None


@asynccontextmanager
async def open_event_stream(
    client: httpx.AsyncClient, url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float
) -> AsyncIterator[EventStream]:
    """POST ``body`` and read the answer as events. Every failure, also inside, is a RequestFailedError."""
    clock = _SendClock()
    # Compression would hold tokens back until a block of it is full.
    request = client.build_request(
        "POST",
        url,
        json=body,
        headers={**headers, "Accept": "text/event-stream", "Accept-Encoding": "identity"},
        extensions={"trace": clock.note, "timeout": httpx.Timeout(timeout_s, pool=None).as_dict()},
    )
    try:
        async with asyncio.timeout(timeout_s):
            response = await client.send(request, stream=True)
            try:
                await _check_it_streams(response)
                yield EventStream(response, clock)
            finally:
                await response.aclose()
    except TimeoutError:
        raise RequestFailedError(f"no complete answer within {timeout_s:g} s (--timeout-s)", retryable=True) from None
    except httpx.HTTPError as error:
        raise failure_of_transport(error) from None


async def _check_it_streams(response: httpx.Response) -> None:
    if response.status_code != 200:
        await response.aread()
        raise failure_of_response(response)
    kind = response.headers.get("content-type", "")
    if "text/event-stream" not in kind:
        raise malformed(f"asked for a stream of events, got {kind or 'no content type'}")
