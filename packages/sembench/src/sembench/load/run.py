"""A whole load run: preflight, all points, the result. The result is on disk after every point."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sembench.identity import identify, now
from sembench.live.config import open_client
from sembench.live.openai import OpenAIEndpoint
from sembench.live.preflight import preflight
from sembench.load.client import Target
from sembench.load.point import LoadPoint
from sembench.load.sweep import Observer, Plan, run_points
from sembench.schema import Aggregate, InputError, ManifestItem, Result, write_atomically

_SPARE_FILES = 64


@dataclass(frozen=True)
class LoadRun:
    plan: Plan
    target: Target
    manifest: Path
    items: list[ManifestItem]
    serve_command: str | None = None

    def measure(self, output: Path, observe: Observer) -> Result:
        """Writes the result with the points so far after each, also when the server goes away in the middle."""
        allow_connections(max((*self.plan.concurrency, self.plan.max_in_flight if self.plan.rates else 0)))
        return asyncio.run(self._measure(output, observe))

    async def _measure(self, output: Path, observe: Observer) -> Result:
        engine = await self._preflight()
        result = Result(
            run=identify(
                "load",
                self.manifest,
                len(self.items),
                seed=self.plan.seed,
                engine=engine,
                serve_command=self.serve_command,
            ),
            config=self._config(),
            aggregate=Aggregate(items=len(self.items), requests_ok=0, requests_failed=0),
            load=[],
        )
        _write(output, result)
        try:
            await run_points(self.plan, self.target, self.items, observe, _collector(output, result))
        except InputError as error:
            done = len(result.load or ())
            raise InputError(f"{error}\nthe {done} points so far are in {output}", error.exit_code) from None
        result.run.finished_at = now()
        _write(output, result)
        return result

    async def _preflight(self) -> dict[str, Any]:
        """Refuses, with exit code 3, a server that is not there or does not serve the model."""
        target = self.target
        async with open_client(target.api_key, 1) as client:
            template: Any = target.template
            options: dict[str, Any] = {"tenant": target.tenant, "timeout_s": target.timeout_s, "template": template}
            found = await preflight(OpenAIEndpoint(client, target.url, target.model, **options), prove=False)
        found.require()
        return found.engine

    def _config(self) -> dict[str, Any]:
        target = asdict(self.target)
        del target["api_key"]
        return {**asdict(self.plan), **target, "prompts": "a new first line each; without reuse, words in random order"}


def _collector(output: Path, result: Result) -> Callable[[LoadPoint], None]:
    def collect(point: LoadPoint) -> None:
        assert result.load is not None
        result.load.append(point.model_dump())
        result.aggregate.requests_ok += point.ok
        result.aggregate.requests_failed += point.failed
        _write(output, result)

    return collect


def _write(output: Path, result: Result) -> None:
    try:
        write_atomically(output, result.model_dump_json(indent=1))
    except OSError as error:
        raise InputError(f"--output {output}: {error.strerror or error}") from None


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
