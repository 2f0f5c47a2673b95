"""What is asked and how: a mix of prompts, with so many requests in flight or so many a second."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sembench.load.answer import Answer
from sembench.load.client import LoadClient
from sembench.load.watch import Watch
from sembench.schema import InputError, ManifestItem

_AFTER_FAILURE_S = 0.1


@dataclass(frozen=True)
class Draw:
    prompt: str
    item_id: str | None
    """The recipient's item; None for a prompt that shares nothing."""


class PromptMix:
    """Draws prompts, a ``reuse_share`` of them recipients.

    Every prompt starts with a line of its own, so that a recipient that is drawn again cannot be answered from the
    engine's exact prefix cache: what it saves, it saves by reuse. Which recipients are drawn follows the seed; texts
    that must be new do not, or a second run would find them in the server's cache.
    """

    def __init__(self, items: Sequence[ManifestItem], reuse_share: float, seed: int) -> None:
        self.reuse_share = reuse_share
        self.recipients = [item for item in items if item.donor_prompts and not item.negative_control]
        if reuse_share > 0 and not self.recipients:
            raise InputError("the manifest has no recipient with donors: only --reuse-share 0 can be run on it")
        self._random = random.Random(f"{seed} {reuse_share}")
        self._order: list[ManifestItem] = []
        self._lengths = [len(item.recipient_prompt.split()) for item in items]
        words = sorted({word for item in items for word in item.recipient_prompt.split()})
        self._words = np.array(words, dtype=object)
        self._fresh = np.random.default_rng()

    @property
    def donors(self) -> list[str]:
        """What has to be served before recipients can reuse anything, each once."""
        return list(dict.fromkeys(donor.text for item in self.recipients for donor in item.donor_prompts))

    def draw(self) -> Draw:
        reuse = self._random.random() < self.reuse_share
        item = self._next_recipient() if reuse else None
        text = item.recipient_prompt if item else self._unlike_any_other()
        return Draw(f"Request {secrets.token_hex(8)}.\n{text}", item.item_id if item else None)

    def _next_recipient(self) -> ManifestItem:
        """All in a random order before any comes again."""
        if not self._order:
            self._order = self._random.sample(self.recipients, len(self.recipients))
        return self._order.pop()

    def _unlike_any_other(self) -> str:
        """As long as some recipient, of the manifest's own words in random order: no run of them comes twice."""
        chosen = self._fresh.integers(len(self._words), size=self._random.choice(self._lengths))
        return " ".join(self._words[chosen].tolist())


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
        for number, offset in enumerate(draw_arrivals(rate, seed)):
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


def draw_arrivals(rate: float, seed: int) -> Iterator[float]:
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
