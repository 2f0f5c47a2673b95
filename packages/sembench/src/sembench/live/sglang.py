"""SGLang's own API: ``/generate``."""

from __future__ import annotations

from typing import Any

from sembench.live.endpoint import Endpoint, ServerRequest, StreamedAnswer
from sembench.live.streaming import malformed
from sembench.openai_events import TokenUsage, count_or_none

_SETTINGS = ("version", "model_path", "served_model_name", "page_size", "attention_backend", "tp_size")
_INCREMENTAL = ("stream_output", "incremental_streaming_output")
_TOP_LOGPROBS = 5


class SGLangEndpoint(Endpoint):
    engine = "sglang"
    reset_paths = ("/flush_cache",)
    salt_field = "extra_key"
    incremental = False
    """A chunk holds the new text only. By default it holds all of it so far; ``describe`` finds out."""

    _path = "/generate"

    def _answer(self) -> StreamedAnswer:
        return _SGLangAnswer(self.incremental)

    async def describe(self) -> dict[str, Any]:
        # Renamed in later releases, which keep the old name for a while.
        info = await self.get_json("/get_server_info") or await self.get_json("/server_info")
        if info is None:
            return {}
        self.incremental = any(info.get(name) is True for name in _INCREMENTAL)
        return {"name": "sglang"} | {name: info[name] for name in _SETTINGS if info.get(name) is not None}

    def _body(self, request: ServerRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "text": request.text,
            "sampling_params": {"temperature": 0, "max_new_tokens": request.max_tokens},
            "stream": True,
            "rid": request.request_id,
        }
        if request.salt is not None:
            body[self.salt_field] = request.salt
        if request.logprobs:
            body |= {"return_logprob": True, "top_logprobs_num": _TOP_LOGPROBS}
        return body | dict(request.extra)


class _SGLangAnswer(StreamedAnswer):
    def __init__(self, incremental: bool) -> None:
        super().__init__()
        self._incremental = incremental
        self._text = ""
        self._meta: dict[str, Any] = {}

    def _read(self, chunk: dict[str, Any], ms: float) -> None:
        text, meta = chunk.get("text"), chunk.get("meta_info")
        if not isinstance(text, str) or not isinstance(meta, dict):
            raise malformed(f"an event without `text` and `meta_info`: {chunk}")
        self._text = self._text + text if self._incremental else text
        if text:
            self._note_text(ms)
        self._meta = meta
        self._note_ending(meta.get("finish_reason"))

    def _content(self) -> tuple[str, TokenUsage, list[dict[str, Any]] | None]:
        counts = (self._meta.get(name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens"))
        names = ("output_token_logprobs", "output_top_logprobs")
        logprobs = {name: self._meta[name] for name in names if name in self._meta}
        return self._text, TokenUsage(*map(count_or_none, counts)), [logprobs] if logprobs else None
