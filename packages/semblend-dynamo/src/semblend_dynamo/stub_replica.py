"""A replica that runs no model: it answers at once, and knows which prompts it has seen.

For demonstrations, tests and load. It speaks OpenAI's API, streaming and not, and what smg asks of a worker. The
tokens that it calls cached are words of a paragraph that it has seen before: a stand-in for an engine with SemBlend,
to show placement with, and never a measurement of reuse.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = "stub"
_PARAGRAPH = re.compile(r"\n\s*\n")


@dataclass
class Behaviour:
    pieces: int = 16
    first_s: float = 0.0
    between_s: float = 0.0
    api_key: str = ""
    """Asked for where it is not empty."""


@dataclass
class Seen:
    """What came, for tests to look at."""

    requests: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paragraphs: set[tuple[str, str]] = field(default_factory=set)
    keep: int = 1000


def create_stub(behaviour: Behaviour | None = None, seen: Seen | None = None) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    told, known = behaviour or Behaviour(), seen or Seen()
    app.state.behaviour, app.state.seen = told, known

    async def complete(request: Request) -> Response:
        if told.api_key and request.headers.get("authorization") != f"Bearer {told.api_key}":
            return JSONResponse({"error": {"message": "wrong key", "type": "invalid_request_error"}}, 401)
        body = await request.json()
        known.requests += 1
        if len(known.bodies) < known.keep:
            known.bodies.append(body)
            known.headers.append(dict(request.headers))
        usage = _usage(body, known)
        chat = request.url.path.endswith("/chat/completions")
        if body.get("stream"):
            return StreamingResponse(_events(body, told, usage, chat), media_type="text/event-stream")
        await asyncio.sleep(told.first_s)
        return JSONResponse(_answer(told, usage, chat))

    async def fixed(request: Request) -> Response:
        facts = {"model_path": MODEL, "version": "0", "data": [{"id": MODEL, "object": "model", "owned_by": MODEL}]}
        return JSONResponse({"object": "list", **facts})

    for path in ("/v1/completions", "/v1/chat/completions"):
        app.router.routes.append(Route(path, complete, methods=["POST"]))
    for path in ("/health", "/v1/models", "/server_info", "/get_server_info", "/model_info", "/get_model_info"):
        app.router.routes.append(Route(path, fixed, methods=["GET"]))
    return app


async def _events(body: dict[str, Any], told: Behaviour, usage: dict[str, Any], chat: bool) -> AsyncIterator[bytes]:
    await asyncio.sleep(told.first_s)
    for number in range(told.pieces):
        if number and told.between_s:
            await asyncio.sleep(told.between_s)
        part = {"delta": {"content": " word"}} if chat else {"text": " word"}
        ended = "stop" if number == told.pieces - 1 else None
        yield _event({"choices": [{"index": 0, "finish_reason": ended, **part}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _event({"choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"id": "stub", "model": MODEL, **fields}).encode() + b"\n\n"


def _answer(told: Behaviour, usage: dict[str, Any], chat: bool) -> dict[str, Any]:
    text = " word" * told.pieces
    part = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"id": "stub", "model": MODEL, "choices": [{"index": 0, "finish_reason": "stop", **part}], "usage": usage}


def _usage(body: dict[str, Any], seen: Seen) -> dict[str, Any]:
    salt, words, cached = str(body.get("cache_salt", "")), 0, 0
    for paragraph in _PARAGRAPH.split(_text(body)):
        length = len(paragraph.split())
        words += length
        cached += length if (salt, paragraph) in seen.paragraphs else 0
        if len(seen.paragraphs) < 100 * seen.keep:
            seen.paragraphs.add((salt, paragraph))
    details = {"cached_tokens": cached}
    return {"prompt_tokens": words, "completion_tokens": 16, "prompt_tokens_details": details}


def _text(body: dict[str, Any]) -> str:
    if isinstance(body.get("prompt"), str):
        return str(body["prompt"])
    messages = body.get("messages") or []
    return "\n\n".join(str(each.get("content")) for each in messages if isinstance(each, dict))


def main() -> None:
    """``python -m semblend_dynamo.stub_replica PORT [PIECES]``."""
    import uvicorn

    pieces = int(sys.argv[2]) if len(sys.argv) > 2 else Behaviour.pieces
    uvicorn.run(create_stub(Behaviour(pieces=pieces)), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
