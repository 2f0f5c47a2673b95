"""What the replay asks of a server, whichever protocol it speaks."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from sembench.live.streaming import (
    RequestFailedError,
    failure_of_response,
    failure_of_status,
    failure_of_transport,
    malformed,
    open_event_stream,
)
from sembench.openai_events import TokenUsage, find_error, mend_text, mend_texts, why_broken_off
from sembench.results.routes import PATH_HEADERS, WORKER_HEADERS

ROUTE_HEADERS = (*PATH_HEADERS, *WORKER_HEADERS, "x-semblend-routing-similarity", "x-semblend-similarity")
"""What routers say of their decision."""
QUICK_TIMEOUT_S = 20.0
"""For questions that no model has to answer."""


@dataclass(frozen=True)
class ServerRequest:
    """One prompt to be served."""

    text: str
    request_id: str
    session_id: str
    max_tokens: int
    salt: str | None = None
    """Requests with different salts share no cached KV, on servers that know salts."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields added to the body as they are."""
    logprobs: bool = False


@dataclass(frozen=True)
class Reply:
    """One answer, complete. Times are from sending the request; None is what the server did not tell."""

    text: str
    ttft_ms: float | None
    """Up to the first chunk with text in it; None for an answer without any."""
    latency_ms: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    route: Mapping[str, str] = field(default_factory=dict)
    logprobs: list[dict[str, Any]] | None = None


class Endpoint(ABC):
    """A server at ``base_url``. Failures are RequestFailedError."""

    engine: str
    """``openai`` or ``sglang``: the protocol."""
    reset_paths: tuple[str, ...]
    """Where such a server may take the order to forget its cached KV."""
    salt_field: str

    def __init__(self, client: httpx.AsyncClient, base_url: str, model: str, *, tenant: str, timeout_s: float) -> None:
        self.client = client
        self.base_url = base_url
        self.model = model
        self.tenant = tenant
        self.timeout_s = timeout_s

    async def ask(self, request: ServerRequest) -> Reply:
        """Serve one prompt, greedily, streaming."""
        answer, url = self._answer(), f"{self.base_url}{self._path}"
        try:
            async with open_event_stream(
                self.client, url, self._body(request), self.headers(request), self.timeout_s
            ) as stream:
                async for arrived, data in stream.events():
                    answer.take(data, stream.ms_since_sent(arrived))
                return answer.reply({**read_route(stream.headers), **answer.route})
        except RecursionError:
            raise malformed("an event is nested too deeply") from None

    @property
    @abstractmethod
    def _path(self) -> str:
        """Where prompts are served."""

    @abstractmethod
    def _body(self, request: ServerRequest) -> dict[str, Any]: ...

    @abstractmethod
    def _answer(self) -> StreamedAnswer:
        """Reads what comes back."""

    @abstractmethod
    async def describe(self) -> dict[str, Any]:
        """What the server says of itself: name, version, settings that matter. Empty where it says nothing."""

    async def models(self) -> list[str] | None:
        """The names it serves; None where it does not tell."""
        listed = await self.get_json("/v1/models")
        if listed is None:
            return None
        entries = listed.get("data")
        if not isinstance(entries, list):
            raise malformed("/v1/models holds no list `data`")
        return [str(entry["id"]) for entry in entries if isinstance(entry, dict) and "id" in entry]

    async def get_json(self, path: str) -> dict[str, Any] | None:
        """The object at ``path``; None where the server has no such path."""
        try:
            response = await self.client.get(f"{self.base_url}{path}", timeout=min(QUICK_TIMEOUT_S, self.timeout_s))
        except httpx.HTTPError as error:
            raise failure_of_transport(error) from None
        if response.status_code in (404, 405, 501):
            return None
        if response.status_code != 200:
            raise failure_of_response(response)
        try:
            document = mend_texts(response.json())
        except (ValueError, RecursionError) as error:
            raise malformed(f"{path} is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise malformed(f"{path} is no JSON object")
        return document

    def headers(self, request: ServerRequest) -> dict[str, str]:
        return {"X-Request-Id": request.request_id, "x-tenant-id": self.tenant, "x-session-id": request.session_id}


def read_route(headers: httpx.Headers) -> dict[str, str]:
    return {name: headers[name] for name in ROUTE_HEADERS if name in headers}


class StreamedAnswer(ABC):
    """Collects the chunks of one streamed answer."""

    def __init__(self) -> None:
        self._ttft_ms: float | None = None
        self._last_ms = 0.0
        self._ended = False
        self.route: dict[str, str] = {}
        """What the answer itself says of the worker that gave it."""

    def take(self, data: str, ms: float) -> None:
        self._last_ms = ms
        if data == "[DONE]":
            self._ended = True
        else:
            self._read(parse_chunk(data), ms)

    def reply(self, route: dict[str, str]) -> Reply:
        if not self._ended:
            raise RequestFailedError("the stream ended before the answer did", retryable=True)
        text, usage, logprobs = self._content()
        return Reply(
            text=mend_text(text),
            ttft_ms=self._ttft_ms,
            latency_ms=self._last_ms,
            prompt_tokens=usage.prompt,
            output_tokens=usage.output,
            cached_tokens=usage.cached,
            route=mend_texts(route),
            logprobs=mend_texts(logprobs),
        )

    @abstractmethod
    def _read(self, chunk: dict[str, Any], ms: float) -> None:
        """One chunk of the answer; ``_note_text`` where text came with it."""

    @abstractmethod
    def _content(self) -> tuple[str, TokenUsage, list[dict[str, Any]] | None]:
        """Text, counts and log-probabilities of the whole answer."""

    def _note_ending(self, finish_reason: object) -> None:
        why = why_broken_off(finish_reason)
        if why:
            raise RequestFailedError(why, retryable=True)
        self._ended |= bool(finish_reason)

    def _note_text(self, ms: float) -> None:
        self._ttft_ms = ms if self._ttft_ms is None else self._ttft_ms


def parse_chunk(data: str) -> dict[str, Any]:
    """One event as an object; an error that the server put into its stream is raised."""
    try:
        chunk = json.loads(data)
    except ValueError:
        raise malformed(f"an event is not JSON: {data}") from None
    if not isinstance(chunk, dict):
        raise malformed(f"an event is no object: {data}")
    error = find_error(chunk)
    if error:
        raise failure_of_status(error.status, f"in the stream: {error.message}")
    return chunk
