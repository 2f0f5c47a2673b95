"""Which headers go on to a replica, and which of its headers come back to the client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

RawHeaders = Sequence[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer", b"trailers"),
        *(b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect"),
    )
)
_NOT_TO_REPLICAS = _HOP_BY_HOP | {
    *(b"host", b"content-length", b"accept-encoding", b"cookie"),
    # Who chooses a worker is the router, and never its client.
    b"x-smg-target-worker",
    b"x-smg-routing-key",
}
_NOT_TO_CLIENTS = _HOP_BY_HOP | {
    *(b"content-length", b"server", b"date", b"set-cookie"),
    # A worker's address inside the fleet. The client is told the replica's name.
    b"x-smg-routed-worker-id",
}


def to_replica(headers: RawHeaders, added: Iterable[tuple[bytes, bytes]] = ()) -> list[tuple[bytes, bytes]]:
    """API keys go through untouched."""
    dropped = _NOT_TO_REPLICAS | _named_by_connection(headers)
    kept = [(name, value) for name, value in headers if name.lower() not in dropped]
    # Answers are read on their way: compressed ones could not be.
    return [*kept, (b"accept-encoding", b"identity"), *added]


def to_client(headers: RawHeaders, added: Iterable[tuple[bytes, bytes]] = ()) -> list[tuple[bytes, bytes]]:
    own = list(added)
    dropped = _NOT_TO_CLIENTS | _named_by_connection(headers) | {name for name, _ in own}
    return [(name.lower(), value) for name, value in headers if name.lower() not in dropped] + own


def header(headers: RawHeaders, name: bytes) -> str:
    """The first value of ``name`` (in small letters), or empty."""
    return next((value.decode("latin-1").strip() for key, value in headers if key.lower() == name), "")


def _named_by_connection(headers: RawHeaders) -> set[bytes]:
    return {
        part.strip().lower() for name, value in headers if name.lower() == b"connection" for part in value.split(b",")
    }
