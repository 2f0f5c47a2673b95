"""Servers with OpenAI's API: ``/v1/completions`` or, with a chat template, ``/v1/chat/completions``."""

from __future__ import annotations

import json
from typing import Any, Literal

import httpx

from sembench.live.endpoint import Ask, Endpoint, Reply, count_or_none, route_of
from sembench.live.streaming import RequestFailedError, event_stream, failure_of_status, malformed

Template = Literal["completion", "chat"]
_TOP_LOGPROBS = 5


class OpenAIEndpoint(Endpoint):
    engine = "openai"
    # vLLM in development mode; its external cache is the one a connector keeps. SGLang has the other.
    reset_paths = ("/reset_prefix_cache?reset_external=true", "/flush_cache")
    salt_field = "cache_salt"

    def __init__(
        self,
        client: httpx.AsyncClient,
        base_url: str,
        model: str,
        *,
        tenant: str,
        timeout_s: float,
        template: Template = "completion",
        seed: int | None = None,
    ) -> None:
        super().__init__(client, base_url, model, tenant=tenant, timeout_s=timeout_s)
        self.template = template
        self.seed = seed

    async def ask(self, ask: Ask) -> Reply:
        path = "/v1/chat/completions" if self.template == "chat" else "/v1/completions"
        answer = _Answer()
        url = f"{self.base_url}{path}"
        async with event_stream(self.client, url, self._body(ask), self.headers(ask), self.timeout_s) as stream:
            async for arrived, data in stream.events():
                answer.take(data, stream.ms_since_sent(arrived))
            return answer.reply(route_of(stream.headers))

    async def describe(self) -> dict[str, Any]:
        version, listed = await self.get_json("/version"), await self.get_json("/v1/models")
        models = listed.get("data") if listed else None
        first = models[0] if isinstance(models, list) and models else None
        owner = first.get("owned_by") if isinstance(first, dict) else None
        told = {"name": owner, "version": version.get("version") if version else None}
        return {name: str(value) for name, value in told.items() if value}

    def _body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.template == "chat":
            body["messages"] = [{"role": "user", "content": ask.text}]
        else:
            body["prompt"] = ask.text
        if self.seed is not None:
            body["seed"] = self.seed
        if ask.salt is not None:
            body[self.salt_field] = ask.salt
        if ask.logprobs:
            chat = {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
            body |= chat if self.template == "chat" else {"logprobs": _TOP_LOGPROBS}
        return body | dict(ask.extra)


class _Answer:
    """Collects the chunks of one streamed answer."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._ttft_ms: float | None = None
        self._last_ms = 0.0
        self._ended = False
        self._usage: dict[str, Any] = {}
        self._logprobs: list[dict[str, Any]] = []

    def take(self, data: str, ms: float) -> None:
        self._last_ms = ms
        if data == "[DONE]":
            self._ended = True
            return
        chunk = parse_chunk(data)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = chunk.get("choices", [])
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise malformed(f"`choices` is no list of objects: {data}")
        for choice in choices:
            self._take_choice(choice, ms)

    def _take_choice(self, choice: dict[str, Any], ms: float) -> None:
        delta = choice.get("delta")
        source = delta if isinstance(delta, dict) else choice
        text = source.get("content" if source is delta else "text") or ""
        # A model that thinks aloud has begun to answer, although nothing of it is the answer's text.
        thought = source.get("reasoning_content") or source.get("reasoning") or ""
        if not isinstance(text, str):
            raise malformed(f"a chunk's text is {type(text).__name__}")
        if (text or thought) and self._ttft_ms is None:
            self._ttft_ms = ms
        self._text.append(text)
        self._ended |= choice.get("finish_reason") is not None
        if isinstance(choice.get("logprobs"), dict):
            self._logprobs.append(choice["logprobs"])

    def reply(self, route: dict[str, str]) -> Reply:
        if not self._ended:
            raise RequestFailedError("the stream ended before the answer did", retryable=True)
        details = self._usage.get("prompt_tokens_details")
        return Reply(
            text="".join(self._text),
            ttft_ms=self._ttft_ms,
            latency_ms=self._last_ms,
            prompt_tokens=count_or_none(self._usage.get("prompt_tokens")),
            output_tokens=count_or_none(self._usage.get("completion_tokens")),
            cached_tokens=count_or_none(details.get("cached_tokens")) if isinstance(details, dict) else None,
            route=route,
            logprobs=self._logprobs or None,
        )


def parse_chunk(data: str) -> dict[str, Any]:
    """One event as an object; an error that the server put into its stream is raised."""
    try:
        chunk = json.loads(data)
    except ValueError:
        raise malformed(f"an event is not JSON: {data}") from None
    if not isinstance(chunk, dict):
        raise malformed(f"an event is no object: {data}")
    error = chunk.get("error")
    if error:
        detail = error if isinstance(error, dict) else {"message": error}
        status = count_or_none(detail.get("code")) or 500
        raise failure_of_status(status, f"in the stream: {detail.get('message')}")
    return chunk
