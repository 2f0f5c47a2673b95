"""What a time means: from the request's sending to the first text, and to the end."""

import asyncio
import json
import time

import httpx
import pytest

from sembench.live.endpoint import ServerRequest
from sembench.live.openai import OpenAIEndpoint

STEP_S = 0.2


def ask(name="r-1"):
    return ServerRequest("a prompt", name, "session", max_tokens=8)


def endpoint(client, url, template="completion"):
    return OpenAIEndpoint(client, url, "tiny", tenant="t", timeout_s=20, template=template)


async def serve_slowly(pieces, pause_s=STEP_S):
    """A server that sends one of ``pieces``, bytes or an event, after every pause."""

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for piece in pieces:
            await asyncio.sleep(pause_s)
            writer.write(piece if isinstance(piece, bytes) else event(piece))
            await writer.drain()
        writer.close()

    return await asyncio.start_server(handle, "127.0.0.1", 0)


def event(content):
    return (
        b"data: "
        + (content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)).encode()
        + b"\n\n"
    )


def replay(pieces, template="completion", pause_s=STEP_S):
    async def run():
        server = await serve_slowly(pieces, pause_s)
        async with server, httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await endpoint(client, url, template).ask(ask())

    return asyncio.run(run())


def chunk(template, text, **more):
    return {"choices": [{"delta": {"content": text}, **more} if template == "chat" else {"text": text, **more}]}


@pytest.mark.parametrize("template", ["completion", "chat"])
def test_chunks_without_text_are_not_the_first_token(template):
    events = [chunk(template, ""), chunk(template, None), chunk(template, "Yes", finish_reason="stop"), "[DONE]"]
    reply = replay(events, template)
    assert reply.text == "Yes"
    assert reply.ttft_ms >= 3 * STEP_S * 1000
    assert reply.latency_ms > reply.ttft_ms


def test_the_first_token_is_timed_when_it_comes_and_not_at_the_end():
    reply = replay(
        [chunk("completion", "Y"), *[chunk("completion", "es")] * 4, chunk("completion", "", finish_reason="stop")]
    )
    assert reply.latency_ms >= 6 * STEP_S * 1000
    assert reply.ttft_ms <= reply.latency_ms - STEP_S * 1000


@pytest.mark.parametrize("size", [1, 7])
def test_events_may_arrive_in_any_pieces(size):
    stream = b": keep-alive\r\n\r\n" + event(chunk("completion", "grün", finish_reason="stop")) + event("[DONE]")
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert replay(pieces, pause_s=0.002).text == "grün"


def test_a_thought_is_the_first_token_and_no_part_of_the_answer():
    thinking = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    reply = replay([thinking, chunk("chat", "Yes"), chunk("chat", "", finish_reason="stop"), "[DONE]"], "chat")
    assert reply.text == "Yes"
    assert reply.ttft_ms < reply.latency_ms


def test_waiting_for_a_free_connection_is_the_harness_and_not_the_server(stub):
    """With one connection the second request cannot go out before the first has ended."""
    stub.delay_s = STEP_S

    async def run():
        limits = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(limits=limits) as client:

            async def timed(name):
                start = time.perf_counter()
                reply = await endpoint(client, stub.url).ask(ask(name))
                return (time.perf_counter() - start) * 1000 - reply.latency_ms

            return await asyncio.gather(timed("r-1"), timed("r-2"))

    waited = sorted(asyncio.run(run()))
    assert waited[1] >= STEP_S * 1000
