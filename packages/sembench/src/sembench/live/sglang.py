"""SGLang's own API: ``/generate``."""

from __future__ import annotations

from typing import Any

from sembench.live.endpoint import Ask, Endpoint, Reply, count_or_none, route_of
from sembench.live.openai import parse_chunk
from sembench.live.streaming import RequestFailedError, event_stream, malformed

_SETTINGS = ("version", "model_path", "served_model_name", "page_size", "attention_backend", "tp_size")
_INCREMENTAL = ("stream_output", "incremental_streaming_output")
_TOP_LOGPROBS = 5


class SGLangEndpoint(Endpoint):
    engine = "sglang"
    reset_paths = ("/flush_cache",)
    salt_field = "extra_key"
    incremental = False
    """A chunk holds the new text only. By default it holds all of it so far; ``describe`` finds out."""

    async def ask(self, ask: Ask) -> Reply:
        answer = _Answer(self.incremental)
        url = f"{self.base_url}/generate"
        async with event_stream(self.client, url, self._body(ask), self.headers(ask), self.timeout_s) as stream:
            async for arrived, data in stream.events():
                answer.take(data, stream.ms_since_sent(arrived))
            return answer.reply(route_of(stream.headers))

    async def describe(self) -> dict[str, Any]:
        # Renamed in later releases, which keep the old name for a while.
        info = await self.get_json("/get_server_info") or await self.get_json("/server_info")
        if info is None:
            return {}
        self.incremental = any(info.get(name) is True for name in _INCREMENTAL)
        return {"name": "sglang"} | {name: info[name] for name in _SETTINGS if info.get(name) is not None}

    def _body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "text": ask.text,
            "sampling_params": {"temperature": 0, "max_new_tokens": ask.max_tokens},
            "stream": True,
            "rid": ask.request_id,
        }
        if ask.salt is not None:
            body[self.salt_field] = ask.salt
        if ask.logprobs:
            body |= {"return_logprob": True, "top_logprobs_num": _TOP_LOGPROBS}
        return body | dict(ask.extra)


class _Answer:
    """Collects the chunks of one streamed answer."""

    def __init__(self, incremental: bool) -> None:
        self._incremental = incremental
        self._text = ""
        self._ttft_ms: float | None = None
        self._last_ms = 0.0
        self._ended = False
        self._meta: dict[str, Any] = {}

    def take(self, data: str, ms: float) -> None:
        self._last_ms = ms
        if data == "[DONE]":
            self._ended = True
            return
        chunk = parse_chunk(data)
        text, meta = chunk.get("text"), chunk.get("meta_info")
        if not isinstance(text, str) or not isinstance(meta, dict):
            raise malformed(f"an event without `text` and `meta_info`: {data}")
        self._text = self._text + text if self._incremental else text
        if text and self._ttft_ms is None:
            self._ttft_ms = ms
        self._meta = meta
        self._ended |= meta.get("finish_reason") is not None

    def reply(self, route: dict[str, str]) -> Reply:
        if not self._ended:
            raise RequestFailedError("the stream ended before the answer did", retryable=True)
        names = ("output_token_logprobs", "output_top_logprobs")
        logprobs = {name: self._meta[name] for name in names if name in self._meta}
        return Reply(
            text=self._text,
            ttft_ms=self._ttft_ms,
            latency_ms=self._last_ms,
            prompt_tokens=count_or_none(self._meta.get("prompt_tokens")),
            output_tokens=count_or_none(self._meta.get("completion_tokens")),
            cached_tokens=count_or_none(self._meta.get("cached_tokens")),
            route=route,
            logprobs=[logprobs] if logprobs else None,
        )
