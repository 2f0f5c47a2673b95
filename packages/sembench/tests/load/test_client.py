"""The client against a real socket: every way in which a server can let it down, and none of them raises."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from sembench.load.answer import Answer
from sembench.load.client import LoadClient, Target
from sembench.load.stub import MODEL, Behaviour, StubServer

Value = TypeVar("Value")
QUICK = Behaviour(first_token_s=0.0, between_tokens_s=0.0, tokens=5)


def against(
    behaviour: Behaviour, act: Callable[[LoadClient, StubServer], Awaitable[Value]], **options: object
) -> Value:
    async def run() -> Value:
        stub = StubServer(behaviour)
        async with await stub.listen() as server:
            port = server.sockets[0].getsockname()[1]
            client = LoadClient(Target(f"http://127.0.0.1:{port}", MODEL, **options))  # type: ignore[arg-type]
            try:
                return await act(client, stub)
            finally:
                client.close()

    return asyncio.run(run())


async def ask(client: LoadClient, stub: StubServer | None = None) -> Answer:
    return await client.send(client.prepare("a prompt"), time.monotonic())


def test_an_answer_is_read_to_its_end() -> None:
    answer = against(QUICK, ask)
    assert answer.error is None
    assert len(answer.token_at) == 5
    assert answer.output_tokens == 5
    assert answer.sent is not None
    assert answer.ended is not None
    assert answer.due <= answer.sent <= answer.token_at[0] <= answer.token_at[-1] <= answer.ended


@pytest.mark.parametrize("template", ["completion", "chat"])
def test_the_prompt_arrives_as_it_is(template: str) -> None:
    prompt = 'Zeile 1\n"zitiert" \u2028 \U0001f642'

    async def act(client: LoadClient, stub: StubServer) -> list[str]:
        await client.send(client.prepare(prompt), time.monotonic())
        return stub.prompts

    assert against(QUICK, act, template=template) == [prompt]


def test_what_the_server_stamped_lies_between_sending_and_arrival() -> None:
    answer = against(Behaviour(first_token_s=0.05, tokens=2), ask)
    received, sent = json.loads(answer.first_event)["stub"]
    assert answer.sent is not None
    assert answer.sent <= received < sent <= answer.token_at[0]


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (Behaviour(fail_status=503), "http_503"),
        (Behaviour(fail_status=429), "http_429"),
        (Behaviour(first_token_s=0, between_tokens_s=0, cut_after=2), "disconnected"),
        (Behaviour(first_token_s=0, garble=True), "malformed"),
        (Behaviour(first_token_s=30), "timeout"),
    ],
)
def test_every_fault_is_told_by_its_kind(behaviour: Behaviour, kind: str) -> None:
    answer = against(behaviour, ask, timeout_s=0.3)
    assert answer.error == kind
    assert answer.detail
    assert answer.ended is not None


def test_an_unreachable_server_is_a_connection_that_failed() -> None:
    answer = asyncio.run(ask(LoadClient(Target("http://127.0.0.1:1", MODEL))))
    assert answer.error == "connect"
    assert answer.sent is None


def test_a_server_without_tls_is_a_connection_that_failed_for_https() -> None:
    async def act(client: LoadClient, stub: StubServer) -> Answer:
        secure = client.target.url.replace("http://", "https://")
        return await ask(LoadClient(Target(secure, MODEL, timeout_s=1)))

    answer = against(QUICK, act)
    assert answer.error == "connect"
    assert answer.detail


def test_a_server_that_speaks_something_else_is_malformed() -> None:
    async def act() -> Answer:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example ESMTP\r\n\r\n")
            await writer.drain()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await ask(LoadClient(Target(f"http://127.0.0.1:{port}", MODEL)))

    assert asyncio.run(act()).error == "malformed"


def test_connections_are_kept_and_used_again() -> None:
    connections = 0

    async def act(client: LoadClient, stub: StubServer) -> None:
        nonlocal connections
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def counted(*arguments: object, **options: object) -> object:
            nonlocal connections
            connections += 1
            return await connect(*arguments, **options)  # type: ignore[arg-type]

        loop.create_connection = counted  # type: ignore[method-assign, assignment]
        for _ in range(5):
            assert (await ask(client)).error is None

    against(QUICK, act)
    assert connections == 1


def test_after_a_failure_the_next_request_gets_a_new_connection() -> None:
    async def act(client: LoadClient, stub: StubServer) -> list[str | None]:
        first = await ask(client)
        stub.behaviour = QUICK
        return [first.error, (await ask(client)).error]

    assert against(Behaviour(first_token_s=0, between_tokens_s=0, cut_after=1), act) == ["disconnected", None]


def test_a_kept_connection_that_the_server_closed_is_no_failure() -> None:
    """The server takes one request per connection without saying so."""
    answers = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        answers += 1
        body = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        # Only when the next request is there, so that the client cannot know beforehand.
        await reader.read(1)
        writer.transport.abort()

    async def act() -> list[str | None]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = LoadClient(Target(f"http://127.0.0.1:{port}", MODEL))
            found = [(await ask(client)).error for _ in range(3)]
            client.close()
            return found

    assert asyncio.run(act()) == [None, None, None]
    assert answers == 3


def test_a_cancelled_request_leaves_no_connection_behind() -> None:
    async def act(client: LoadClient, stub: StubServer) -> tuple[int, int]:
        task = asyncio.create_task(ask(client))
        while not stub.in_flight:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while stub.in_flight:
            await asyncio.sleep(0.01)
        return client.in_flight, len(client._idle)

    assert against(Behaviour(first_token_s=30), act) == (0, 0)


@pytest.mark.parametrize("salt", ["acme", None])
def test_the_salt_is_sent_where_there_is_one(salt: str | None) -> None:
    request = LoadClient(Target("http://127.0.0.1:9", MODEL, salt=salt)).prepare("a prompt")
    assert json.loads(request.split(b"\r\n\r\n", 1)[1]).get("cache_salt") == salt
