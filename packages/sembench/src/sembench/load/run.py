"""A whole load run: preflight, all points one after the other, the result. It is on disk after every point."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.identity import identify, now
from sembench.live.config import open_client
from sembench.live.openai import OpenAIEndpoint
from sembench.live.preflight import Preflight, preflight
from sembench.load.answer import Answer
from sembench.load.client import LoadClient, Target
from sembench.load.loops import PromptMix, closed_loop, open_loop
from sembench.load.point import LoadPoint, measure_point
from sembench.load.watch import Watch, undisturbed
from sembench.schema import Aggregate, InputError, ManifestItem, Result, naming, write_atomically

_DONORS_AT_ONCE = 4
_HOPELESS = 20
_SPARE_FILES = 64


@dataclass(frozen=True)
class LoadSweep:
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
    sweep: LoadSweep,
    target: Target,
    items: list[ManifestItem],
    observe: Observer,
    on_point: Callable[[LoadPoint], None],
) -> None:
    """Measures every point and hands it on as soon as it stands. A server that went away ends the run."""
    for setting in sweep.points():
        mix = PromptMix(items, setting.reuse_share, sweep.seed)
        donors = await _serve_donors(target, mix) if setting.reuse_share > 0 else 0
        point = await _measured(sweep, target, setting, mix, donors, observe)
        on_point(point)
        if point.stopped:
            raise InputError(f"{target.url}: with {setting.words}: {point.stopped}", REFUSED_OUTSIDE)


async def _measured(
    sweep: LoadSweep, target: Target, setting: Setting, mix: PromptMix, donors: int, observe: Observer
) -> LoadPoint:
    client = LoadClient(target)
    if setting.concurrency is not None:
        # Before the clock starts: opening many connections takes a while.
        await client.open_connections(setting.concurrency)
    start = time.monotonic() + sweep.warmup_s
    watch = Watch(
        start,
        start + sweep.duration_s,
        hopeless_after=max(_HOPELESS, 2 * (setting.concurrency or 0)),
        min_requests=sweep.min_requests,
    )
    beside = [asyncio.create_task(watch.measure_lag()), asyncio.create_task(_run(observe(setting, watch)))]
    try:
        with undisturbed():
            if setting.concurrency is not None:
                await closed_loop(client, mix, watch, setting.concurrency)
            elif setting.rate is not None:
                await open_loop(client, mix, watch, setting.rate, sweep.max_in_flight, sweep.seed)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        client.close()
    if any(answer.error for answer in watch.answers) and not await client.reachable():
        watch.stopped = watch.stopped or "the server no longer accepts connections"
    return measure_point(
        watch,
        concurrency=setting.concurrency,
        rate=setting.rate,
        reuse_share=setting.reuse_share,
        warmup_s=sweep.warmup_s,
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
        raise InputError(
            f"{target.url}: {len(failed)} of {len(donors)} donors were not served: {said}", REFUSED_OUTSIDE
        )
    return len(donors)


async def _run(observing: Awaitable[None]) -> None:
    await observing


@dataclass(frozen=True)
class LoadRun:
    sweep: LoadSweep
    target: Target
    manifest: Path
    items: list[ManifestItem]
    serve_command: str | None = None

    def measure(self, output: Path, observe: Observer) -> Result:
        """Writes the result with the points so far after each, also when the server goes away in the middle."""
        allow_connections(max((*self.sweep.concurrency, self.sweep.max_in_flight if self.sweep.rates else 0)))
        return asyncio.run(self._measure(output, observe))

    async def _measure(self, output: Path, observe: Observer) -> Result:
        found = await self._preflight()
        target = replace(self.target, salt=self.target.tenant or None) if found.able.accepts_salt else self.target
        result = Result(
            run=identify(
                "load",
                self.manifest,
                len(self.items),
                seed=self.sweep.seed,
                engine=found.engine,
                serve_command=self.serve_command,
            ),
            config=self._config(target),
            aggregate=Aggregate(items=len(self.items), requests_ok=0, requests_failed=0),
            load=[],
        )
        _write(output, result)
        try:
            await run_points(self.sweep, target, self.items, observe, _collector(output, result))
        except InputError as error:
            done = len(result.load or ())
            raise InputError(f"{error}\nthe {done} points so far are in {output}", error.exit_code) from None
        result.run.finished_at = now()
        _write(output, result)
        return result

    async def _preflight(self) -> Preflight:
        """Refuses, with exit code 3, a server that is not there or does not serve the model."""
        target = self.target
        async with open_client(target.api_key, 1) as client:
            template: Any = target.template
            options: dict[str, Any] = {"tenant": target.tenant, "timeout_s": target.timeout_s, "template": template}
            found = await preflight(OpenAIEndpoint(client, target.url, target.model, **options), prove=False)
        found.require()
        return found

    def _config(self, target: Target) -> dict[str, Any]:
        told = asdict(target)
        del told["api_key"]
        return {
            **asdict(self.sweep),
            **told,
            "prompts": "a new first line each; without reuse, words in random order",
        }


def _collector(output: Path, result: Result) -> Callable[[LoadPoint], None]:
    def collect(point: LoadPoint) -> None:
        assert result.load is not None
        result.load.append(point.model_dump())
        result.aggregate.requests_ok += point.ok
        result.aggregate.requests_failed += point.failed
        _write(output, result)

    return collect


def _write(output: Path, result: Result) -> None:
    with naming(f"--output {output}"):
        write_atomically(output, result.model_dump_json(indent=1))


def allow_connections(wanted: int) -> None:
    """Each stream needs an open file; the usual limit of 1024 is a soft one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise InputError(
                f"{wanted} requests in flight need {needed} open files, and the limit is {hard} (ulimit -n)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
