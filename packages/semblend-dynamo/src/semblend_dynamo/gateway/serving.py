"""uvicorn, with limits on a request's head: how long it may take, and how long it may be."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_TIMEOUT_S = 20.0
LONGEST_HEAD = 64 << 10
"""Bytes of a head that has not ended: the parser itself would take gigabytes. One that came at once may be longer."""
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class PatientProtocol(HttpToolsProtocol):
    """uvicorn closes connections that idle between requests, and no others: one that never asks stays for ever."""

    head_timeout_s = HEAD_TIMEOUT_S

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is None:
            return
        self._head_bytes += len(data)
        if self._head_bytes > LONGEST_HEAD and not self.transport.is_closing():
            self.transport.write(_TOO_LONG)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def _await_head(self) -> None:
        self._head_came()
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._close)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def serve(app: Any, host: str, port: int) -> None:
    """Until SIGINT or SIGTERM; requests under way are then served to their end."""
    # What was built so far lives as long as the process: collections need not look at it while streams wait.
    gc.collect()
    gc.freeze()
    # No access log: it would name paths and addresses of clients, and the metrics count them.
    uvicorn.run(
        app,
        host=host,
        port=port,
        http=PatientProtocol,
        access_log=False,
        server_header=False,
        log_level="info",
        timeout_graceful_shutdown=30,
    )
