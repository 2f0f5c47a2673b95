"""HTTP/1.1 as far as a stream of events needs it, fast enough to be no part of what is measured.

httpx costs several times as much for each event; with hundreds of streams that time would be charged to the server.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_HEAD = 64 * 1024


class ProtocolError(Exception):
    """The peer does not speak HTTP/1.1 as we understand it."""


@dataclass
class ResponseDecoder:
    """Bytes in, pieces of the body out, however the bytes were cut on the way."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case."""
    complete: bool = False
    _buffer: bytes = b""
    _left: int | None = None
    """Bytes that the current chunk, or the body, still has; None where the body ends with the connection."""
    _chunked: bool = False
    _after_chunk: bool = False
    _in_trailer: bool = False

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request."""
        ends_by_itself = self._chunked or self._left is not None
        return self.complete and ends_by_itself and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> list[bytes]:
        if self.complete:
            raise ProtocolError("bytes after the end of the response")
        data, self._buffer = self._buffer + data, b""
        if self.status is None:
            rest = self._head(data)
            if rest is None:
                return []
            data = rest
        if not self._chunked:
            return self._counted(data)
        return self._chunks(data)

    def end_of_input(self) -> bool:
        """The connection closed; True where that is a proper end."""
        if self.status is not None and not self._chunked and self._left is None:
            self.complete = True
        return self.complete

    def _head(self, data: bytes) -> bytes | None:
        head, found, rest = data.partition(b"\r\n\r\n")
        if not found:
            if len(data) > MAX_HEAD:
                raise ProtocolError("the response's head does not end")
            self._buffer = data
            return None
        first, *lines = head.split(b"\r\n")
        self.status = _status(first)
        for line in lines:
            name, _, value = line.partition(b":")
            self.headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
        if 100 <= self.status < 200:
            self.status, self.headers = None, {}
            return self._head(rest)
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        if not self._chunked and "content-length" in self.headers:
            self._left = _number(self.headers["content-length"].encode("latin-1"), 10)
        return rest

    def _counted(self, data: bytes) -> list[bytes]:
        if self._left is None:
            return [data] if data else []
        if len(data) > self._left:
            raise ProtocolError("the body is longer than it said")
        self._left -= len(data)
        self.complete = self._left == 0
        return [data] if data else []

    def _chunks(self, data: bytes) -> list[bytes]:
        pieces = []
        while data and not self.complete:
            if self._left:
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                self._after_chunk = not self._left
                pieces.append(piece)
                continue
            line, found, rest = data.partition(b"\r\n")
            if not found:
                self._buffer = data
                break
            data = rest
            self._line(line)
        if self.complete and data:
            raise ProtocolError("bytes after the end of the response")
        return pieces

    def _line(self, line: bytes) -> None:
        """A line between chunks: the end of the last one, the next one's size, or the trailer."""
        if self._after_chunk:
            if line:
                raise ProtocolError("a chunk is longer than it said")
            self._after_chunk = False
        elif self._in_trailer:
            self.complete = not line
        else:
            self._left = _number(line.partition(b";")[0].strip(), 16)
            self._in_trailer = self._left == 0


def _status(line: bytes) -> int:
    protocol, _, rest = line.partition(b" ")
    if not protocol.startswith(b"HTTP/1."):
        raise ProtocolError(f"not HTTP/1.1: {line[:40]!r}")
    return _number(rest[:3], 10)


def _number(digits: bytes, base: int) -> int:
    # int() alone would take signs, spaces and underscores.
    if not digits or not digits.isalnum():
        raise ProtocolError(f"not a number: {digits[:20]!r}")
    try:
        return int(digits, base)
    except ValueError:
        raise ProtocolError(f"not a number: {digits[:20]!r}") from None
