"""A small client for loads: HTTP/1.1 over kept connections, and nothing that costs more than the servers measured."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

CHUNKS_END = b"0\r\n\r\n"


@dataclass
class Timing:
    first_ms: float
    total_ms: float
    status: int
    done: bool
    """Whether the stream came to its end."""
    broke_off: bool = False


class LoadClient:
    def __init__(self, url: str, model: str = "stub", max_tokens: int = 16) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._host, self._port = host, int(port)
        self._fields = {"model": model, "max_tokens": max_tokens, "stream": True}
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, prompt: str, tenant: str = "bench") -> Timing:
        """One streaming request. A kept connection that was closed meanwhile is replaced, once."""
        body = json.dumps({**self._fields, "prompt": prompt}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            f"x-tenant-id: {tenant}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        start = time.perf_counter()
        while True:
            kept = bool(self._idle)
            reader, writer = self._idle.pop() if kept else await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(head + body)
                return await self._read(reader, writer, start)
            except (ConnectionError, asyncio.IncompleteReadError):
                writer.close()
                if not kept:
                    raise

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: float) -> Timing:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if b"chunked" not in head.lower():
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            now = (time.perf_counter() - start) * 1000
            self._idle.append((reader, writer))
            return Timing(now, now, status, False)
        first, tail, broke_off = 0.0, b"", False
        while not tail.endswith(CHUNKS_END):
            data = await reader.read(65536)
            first = first or (time.perf_counter() - start) * 1000
            if not data:
                break
            broke_off |= b"broke_off" in data
            tail = (tail + data)[-200:]
        ended = tail.endswith(CHUNKS_END)
        if ended:
            self._idle.append((reader, writer))
        else:
            writer.close()
        total = (time.perf_counter() - start) * 1000
        return Timing(first, total, status, ended and b"[DONE]" in tail, broke_off)

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


async def at_rate(client: LoadClient, rate: float, seconds: float, prompts: list[str]) -> list[Timing]:
    """Open loop: each request has its moment, whether or not earlier ones are done. Timed from that moment."""
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.1
    tasks: list[asyncio.Task[Timing]] = []
    for number in range(int(rate * seconds)):
        delay = begin + number / rate - loop.time()
        if delay > 0:
            await asyncio.sleep(delay)
        tasks.append(asyncio.create_task(client.ask(prompts[number % len(prompts)])))
    return list(await asyncio.gather(*tasks))


async def in_flight(client: LoadClient, requests: int, at_once: int, prompts: list[str]) -> list[Timing]:
    """Closed loop: so many at once until all are served."""
    found: list[Timing] = []
    numbers = iter(range(requests))

    async def worker() -> None:
        for number in numbers:
            found.append(await client.ask(prompts[number % len(prompts)]))

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return found


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
