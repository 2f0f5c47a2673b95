"""Server-sent events over httpx, timed from the moment the request goes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from sembench.live.failures import RequestFailedError, failure_of_response, failure_of_transport, malformed

_SENDING = frozenset({"http11.send_request_headers.started", "http2.send_request_headers.started"})


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
        """When each event's bytes arrived, and its data.

        Lines are split at line feeds only: JSON may hold the other characters that Unicode calls line ends.
        """
        rest = b""
        async for chunk in self._response.aiter_bytes():
            arrived = time.perf_counter()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield arrived, _text(line[5:])


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise malformed(f"an event is not UTF-8: {error}") from None


@asynccontextmanager
async def event_stream(
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
