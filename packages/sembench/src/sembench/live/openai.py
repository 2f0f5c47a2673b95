"""Servers with OpenAI's API: ``/v1/completions`` or, with a chat template, ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Any, Literal

import httpx

from sembench.live.endpoint import Endpoint, ServerRequest, StreamedAnswer
from sembench.live.streaming import RequestFailedError, malformed
from sembench.openai_events import TokenUsage, read_usage, text_and_thought
from sembench.results.routes import read_worker

ServerTemplate = Literal["completion", "chat"]
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
        template: ServerTemplate = "completion",
        seed: int | None = None,
    ) -> None:
        super().__init__(client, base_url, model, tenant=tenant, timeout_s=timeout_s)
        self.template = template
        self.seed = seed
        self._extra: dict[str, Any] = {}
        self._takes_rid = False

    @property
    def _path(self) -> str:
        return "/v1/chat/completions" if self.template == "chat" else "/v1/completions"

    def _answer(self) -> StreamedAnswer:
        return _OpenAIAnswer()

    async def describe(self) -> dict[str, Any]:
        version, listed = await self._version(), await self.get_json("/v1/models")
        models = listed.get("data") if listed else None
        first = models[0] if isinstance(models, list) and models else None
        owner = first.get("owned_by") if isinstance(first, dict) else None
        # SGLang reads no header for the id. Dynamo names the worker only where it is asked to.
        self._takes_rid = owner == "sglang"
        self._extra = {"nvext": {"extra_fields": ["worker_id"]}} if owner == "nvidia" else {}
        told = {"name": owner, "version": version}
        return {name: str(value) for name, value in told.items() if value}

    async def _version(self) -> object:
        """vLLM's. It is no part of OpenAI's API, so servers and gateways may say anything there."""
        try:
            told = await self.get_json("/version")
        except RequestFailedError:
            return None
        return told.get("version") if told else None

    def _body(self, request: ServerRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.template == "chat":
            body["messages"] = [{"role": "user", "content": request.text}]
        else:
            body["prompt"] = request.text
        if self.seed is not None:
            body["seed"] = self.seed
        if request.salt is not None:
            body[self.salt_field] = request.salt
        if request.logprobs:
            chat = {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
            body |= chat if self.template == "chat" else {"logprobs": _TOP_LOGPROBS}
        if self._takes_rid:
            body["rid"] = request.request_id
        return body | self._extra | dict(request.extra)


class _OpenAIAnswer(StreamedAnswer):
    def __init__(self) -> None:
        super().__init__()
        self._text: list[str] = []
        self._usage = TokenUsage()
        self._logprobs: list[dict[str, Any]] = []

    def _read(self, chunk: dict[str, Any], ms: float) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = read_usage(usage)
        self.route |= read_worker(chunk)
        choices = chunk.get("choices", [])
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise malformed(f"`choices` is no list of objects: {chunk}")
        for choice in choices:
            self._read_choice(choice, ms)

    def _read_choice(self, choice: dict[str, Any], ms: float) -> None:
        if not isinstance(choice.get("delta", {}), dict | None):
            raise malformed(f"a chunk's delta is {type(choice['delta']).__name__}")
        text, thought = text_and_thought(choice)
        if not isinstance(text, str):
            raise malformed(f"a chunk's text is {type(text).__name__}")
        if text or thought:
            self._note_text(ms)
        self._text.append(text)
        self._note_ending(choice.get("finish_reason"))
        if isinstance(choice.get("logprobs"), dict):
            self._logprobs.append(choice["logprobs"])

    def _content(self) -> tuple[str, TokenUsage, list[dict[str, Any]] | None]:
        return "".join(self._text), self._usage, self._logprobs or None
