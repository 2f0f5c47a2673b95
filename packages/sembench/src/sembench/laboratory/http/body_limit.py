"""Refuses bodies that are too large while they come in, whatever their headers say."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 4 * 1024 * 1024


class BodyLimit:
    """Reads a body before the application sees the request: what fails in there is told apart from what is too much."""

    def __init__(self, app: ASGIApp, most: int = MOST_BYTES) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        waiting: list[Message] = []
        taken = 0
        while True:
            message = await receive()
            waiting.append(message)
            taken += len(message.get("body", b""))
            if taken > self._most:
                answer = JSONResponse({"detail": [f"body: larger than {self._most} bytes"]}, status_code=413)
                await answer(scope, receive, send)
                return
            if message["type"] != "http.request" or not message.get("more_body"):
                break

        async def again() -> Message:
            return waiting.pop(0) if waiting else await receive()

        await self._app(scope, again, send)
