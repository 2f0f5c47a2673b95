from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.load.http1 import ProtocolError, ResponseDecoder

bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
cuts = st.lists(st.integers(0, 400), max_size=12)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def fed(decoder: ResponseDecoder, data: bytes, at: list[int]) -> bytes:
    """The body, with the bytes cut at these places on the way."""
    places = [0, *sorted(min(place, len(data)) for place in at), len(data)]
    pieces: list[bytes] = []
    for start, end in zip(places, places[1:], strict=False):  # noqa: RUF007
        if start < end:
            pieces += decoder.feed(data[start:end])
    return b"".join(pieces)


@given(bodies, cuts)
def test_a_chunked_body_comes_out_whole_however_it_was_cut(body: list[bytes], at: list[int]) -> None:
    chunks = b"".join(b"%x;note=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in body)
    decoder = ResponseDecoder()
    message = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-Trailer: yes\r\n\r\n"
    assert fed(decoder, message, at) == b"".join(body)
    assert decoder.status == 200
    assert decoder.complete
    assert decoder.keeps_alive


@given(st.binary(max_size=100), cuts)
def test_a_counted_body_comes_out_whole(body: bytes, at: list[int]) -> None:
    decoder = ResponseDecoder()
    assert fed(decoder, HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, at) == body
    assert decoder.complete


@given(st.binary(max_size=100), cuts)
def test_a_body_without_a_length_ends_with_the_connection(body: bytes, at: list[int]) -> None:
    decoder = ResponseDecoder()
    assert fed(decoder, HEAD + b"\r\n" + body, at) == body
    assert not decoder.complete
    assert decoder.end_of_input()
    assert not decoder.keeps_alive


def test_an_interim_response_is_passed_over() -> None:
    decoder = ResponseDecoder()
    message = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
    assert decoder.feed(message) == [b"no"]
    assert decoder.status == 404


def test_a_server_that_says_close_is_believed() -> None:
    decoder = ResponseDecoder()
    decoder.feed(HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
    assert decoder.complete
    assert not decoder.keeps_alive


def test_an_end_in_the_middle_is_no_proper_end() -> None:
    decoder = ResponseDecoder()
    decoder.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab")
    assert not decoder.end_of_input()


@pytest.mark.parametrize(
    "message",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1_0\r\n\r\n",
        HEAD + b"Content-Length: 1\r\n\r\nab",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore",
        b"x" * 70_000,
    ],
)
def test_what_is_not_http_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        ResponseDecoder().feed(message)
