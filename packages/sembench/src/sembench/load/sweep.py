"""All points of a run, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

from sembench.load.answer import Answer
from sembench.load.client import LoadClient, Target
from sembench.load.loops import closed_loop, open_loop
from sembench.load.measure import point_of
from sembench.load.mix import PromptMix
from sembench.load.point import LoadPoint
from sembench.load.watch import Watch, undisturbed
from sembench.schema import InputError, ManifestItem

REFUSED = 3
_DONORS_AT_ONCE = 4
_HOPELESS = 20


@dataclass(frozen=True)
class Plan:
    """Which points are measured, and for how long each."""

    concurrency: tuple[int, ...]
    rates: tuple[float, ...]
    reuse_shares: tuple[float, ...]
    duration_s: float
    warmup_s: float
    min_requests: int
    """A point lasts longer where fewer would be due in it."""
    max_in_flight: int
    seed: int

    def points(self) -> Iterator[Setting]:
        for share in self.reuse_shares:
            for concurrency in self.concurrency:
                yield Setting(share, concurrency=concurrency)
            for rate in self.rates:
                yield Setting(share, rate=rate)


@dataclass(frozen=True)
class Setting:
    reuse_share: float
    concurrency: int | None = None
    rate: float | None = None

    @property
    def words(self) -> str:
        level = f"{self.concurrency} in flight" if self.concurrency is not None else f"{self.rate:g} arrivals/s"
        return f"{level}, reuse share {self.reuse_share:g}"


Observer = Callable[[Setting, Watch], Awaitable[None]]
"""Runs beside a point, to show how it is doing; is cancelled at its end."""


async def run_points(
    plan: Plan, target: Target, items: list[ManifestItem], observe: Observer, on_point: Callable[[LoadPoint], None]
) -> None:
    """Measures every point and hands it on as soon as it stands. A server that went away ends the run."""
    for setting in plan.points():
        mix = PromptMix(items, setting.reuse_share, plan.seed)
        donors = await _serve_donors(target, mix) if setting.reuse_share > 0 else 0
        point = await _measured(plan, target, setting, mix, donors, observe)
        on_point(point)
        if point.stopped:
            raise InputError(f"{target.url}: with {setting.words}: {point.stopped}", REFUSED)


async def _measured(
    plan: Plan, target: Target, setting: Setting, mix: PromptMix, donors: int, observe: Observer
) -> LoadPoint:
    client = LoadClient(target)
    if setting.concurrency is not None:
        # Before the clock starts: opening many connections takes a while.
        await client.open_connections(setting.concurrency)
    start = time.monotonic() + plan.warmup_s
    watch = Watch(
        start,
        start + plan.duration_s,
        hopeless_after=max(_HOPELESS, 2 * (setting.concurrency or 0)),
        min_requests=plan.min_requests,
    )
    beside = [asyncio.create_task(watch.measure_lag()), asyncio.create_task(_run(observe(setting, watch)))]
    try:
        with undisturbed():
            if setting.concurrency is not None:
                await closed_loop(client, mix, watch, setting.concurrency)
            elif setting.rate is not None:
                await open_loop(client, mix, watch, setting.rate, plan.max_in_flight, plan.seed)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        client.close()
    if any(answer.error for answer in watch.answers) and not await client.reachable():
        watch.stopped = watch.stopped or "the server no longer accepts connections"
    return point_of(
        watch,
        concurrency=setting.concurrency,
        rate=setting.rate,
        reuse_share=setting.reuse_share,
        warmup_s=plan.warmup_s,
        donors_served=donors,
    )


async def _serve_donors(target: Target, mix: PromptMix) -> int:
    """Before every point with reuse, since the points before it may have driven donors out of the cache."""
    client = LoadClient(replace(target, max_output_tokens=1))
    slots = asyncio.Semaphore(_DONORS_AT_ONCE)

    async def serve(text: str) -> Answer:
        async with slots:
            return await client.send(client.prepare(text), time.monotonic())

    donors = mix.donors
    try:
        answers = await asyncio.gather(*(serve(text) for text in donors))
    finally:
        client.close()
    failed = [answer for answer in answers if answer.error is not None]
    if failed:
        said = f"{failed[0].error}: {failed[0].detail}"
        raise InputError(f"{target.url}: {len(failed)} of {len(donors)} donors were not served: {said}", REFUSED)
    return len(donors)


async def _run(observing: Awaitable[None]) -> None:
    await observing
