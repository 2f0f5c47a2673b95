"""Two ways to put load on a server: so many requests in flight, or so many a second."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

from sembench.load.answer import Answer
from sembench.load.client import LoadClient
from sembench.load.mix import Draw, PromptMix
from sembench.load.watch import Watch

_AFTER_FAILURE_S = 0.1


async def closed_loop(client: LoadClient, mix: PromptMix, watch: Watch, concurrency: int) -> None:
    """Keeps ``concurrency`` requests in flight until the last one that counts is answered.

    The requests that merely keep the load up beyond the window are then broken off.
    """
    # In step, all would wait for the server at the same time and idle at the same time.
    ramp = max(0.0, watch.window_start - time.monotonic()) / 2
    counted: dict[int, float] = {}

    async def worker(number: int) -> None:
        await asyncio.sleep(ramp * number / concurrency)
        while not watch.stopped:
            draw = mix.draw()
            request = client.prepare(draw.prompt)
            due = time.monotonic()
            watch.admit(due)
            if watch.counts(due):
                counted[number] = due
            answer = await _served(client, watch, request, due, draw)
            counted.pop(number, None)
            if answer.error is not None:
                await asyncio.sleep(_AFTER_FAILURE_S)

    workers = [asyncio.create_task(worker(number)) for number in range(concurrency)]
    try:
        while not watch.stopped and (watch.is_open_at(time.monotonic()) or counted):
            await asyncio.sleep(min(0.05, max(0.005, watch.window_end - time.monotonic())))
            _raise_of(workers)
        watch.leave(counted.values())
    finally:
        await _cancelled(workers)


async def open_loop(
    client: LoadClient, mix: PromptMix, watch: Watch, rate: float, max_in_flight: int, seed: int
) -> None:
    """Sends requests when they are due, answered or not; those that cannot be sent wait, and their wait counts."""
    slots = asyncio.Semaphore(max_in_flight)
    tasks: list[asyncio.Task[None]] = []
    unanswered: dict[int, float] = {}

    async def serve(number: int, request: bytes, due: float, draw: Draw) -> None:
        watch.waits(slots.locked())
        async with slots:
            watch.waits_no_more()
            await _served(client, watch, request, due, draw)
        del unanswered[number]

    def note_backlog() -> None:
        watch.backlog_at_start = len(unanswered)

    begin = time.monotonic()
    noting = asyncio.get_running_loop().call_later(watch.window_start - begin, note_backlog)
    try:
        for number, offset in enumerate(arrivals(rate, seed)):
            if not watch.is_open_at(begin + offset):
                break
            # Prepared while there is time, so that at its moment only the sending is left.
            draw = mix.draw()
            request = client.prepare(draw.prompt)
            await asyncio.sleep(max(0.0, begin + offset - time.monotonic()))
            if watch.stopped:
                break
            watch.admit(begin + offset)
            unanswered[number] = begin + offset
            tasks.append(asyncio.create_task(serve(number, request, begin + offset, draw)))
        await asyncio.sleep(max(0.0, watch.window_end - time.monotonic()) if not watch.stopped else 0)
        watch.backlog = len(unanswered)
        deadline = time.monotonic() + client.target.timeout_s
        while unanswered and not watch.stopped and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            _raise_of(tasks)
        watch.leave(unanswered.values())
    finally:
        noting.cancel()
        await _cancelled(tasks)


def arrivals(rate: float, seed: int) -> Iterator[float]:
    """A Poisson process without end: independent users. The same seed gives the same moments."""
    source = random.Random(f"{seed} {rate}")
    moment = 0.0
    while True:
        moment += source.expovariate(rate)
        yield moment


async def _served(client: LoadClient, watch: Watch, request: bytes, due: float, draw: Draw) -> Answer:
    watch.begins(due, draw.item_id)
    answer = None
    try:
        answer = await client.send(request, due)
        answer.reuse = draw.item_id is not None
        return answer
    finally:
        watch.ends(answer)


def _raise_of(tasks: list[asyncio.Task[None]]) -> None:
    """A fault of ours must not pass for one of the server."""
    for task in tasks:
        if task.done() and not task.cancelled() and task.exception() is not None:
            task.result()


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
