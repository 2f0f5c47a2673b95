"""A client that leaves takes its request with it: nobody computes an answer that nobody reads."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from semblend_dynamo.gateway.bodies import ClientLeftError, Message, Receive


class UntilClientLeaves:
    """While it is entered, a client that goes ends what is under way there with ClientLeftError.

    Enter it when the body has been read: after that the server says nothing but that the client has gone.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[object] = task
        self._watch = asyncio.ensure_future(self._receive())
        self._watch.add_done_callback(self._gone)
        return self

    def _gone(self, watch: asyncio.Future[Message]) -> None:
        if not watch.cancelled() and watch.exception() is None and not self._left:
            self._left = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.remove_done_callback(self._gone)
        self._watch.cancel()
        if self._left and self._task.uncancel() == 0 and (kind is None or kind is asyncio.CancelledError):
            raise ClientLeftError
