"""The routes. Simulated figures only: nothing here reaches a GPU or another machine."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from sembench.__about__ import __version__
from sembench.laboratory.config import CacheSettings, load_experiment, shipped_experiments
from sembench.laboratory.experiment import run_experiment
from sembench.laboratory.http.bodies import (
    CacheState,
    Health,
    MetricsSummary,
    Problem,
    RunDone,
    RunOrder,
    ShippedExperiment,
    SimulatedAnswer,
    SimulatedRequest,
)
from sembench.laboratory.http.body_limit import BodyLimit
from sembench.laboratory.http.live import LiveCaches
from sembench.laboratory.http.page import PAGE
from sembench.laboratory.outputs import write_run
from sembench.laboratory.plots import EXPERIMENT_FIGURES
from sembench.laboratory.summary import summary_of
from sembench.laboratory.trace_schema import TraceRequest
from sembench.schema import InputError

DEFAULT_BUDGET = 50_000
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The body cannot be read as JSON."},
    413: {"model": Problem, "description": "The body is too large."},
    422: {"model": Problem, "description": "Something is wrong with the request; each line names a field."},
}
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "There is no such thing."}}
_BUSY: dict[int | str, dict[str, Any]] = {409: {"model": Problem, "description": "An experiment is running."}}


def create_app(output_dir: Path, settings: CacheSettings | None = None) -> FastAPI:
    """``output_dir``: where experiments write; made with the first of them. ``settings``: of the live caches."""
    live = LiveCaches(settings or CacheSettings(cache_token_budget=DEFAULT_BUDGET))
    app = FastAPI(
        title="SemBench eviction laboratory",
        version=__version__,
        description="Simulated caches of limited size. All times are estimates, not measured GPU latency.",
    )
    app.add_middleware(BodyLimit)
    app.add_exception_handler(RequestValidationError, _refused)
    app.add_exception_handler(StarletteHTTPException, _problem)
    _add_live_routes(app, live)
    _add_experiment_routes(app, output_dir)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> str:
        return PAGE

    return app


def _add_live_routes(app: FastAPI, live: LiveCaches) -> None:
    @app.get("/health")
    def health() -> Health:
        """Whether the server answers, and with which policies."""
        return Health(status="ok", version=__version__, policies=live.policies, requests=live.requests)

    @app.post("/v1/simulate/request", responses=_PROBLEMS)
    def simulate_request(request: SimulatedRequest) -> SimulatedAnswer:
        """Serve one prompt from every policy's cache. It stays there for the next ones."""
        try:
            return live.serve(request)
        except ValidationError as error:
            raise HTTPException(422, [f"{each['loc']}: {each['msg']}" for each in error.errors()]) from None
        except ValueError as error:
            raise HTTPException(422, [str(error)]) from None

    @app.get("/v1/cache/state", responses={**_NOT_FOUND, 422: _PROBLEMS[422]})
    def cache_state(policy: Annotated[str, Query(max_length=80)] = "lru") -> CacheState:
        """What one policy's cache holds now."""
        if policy not in live.policies:
            raise HTTPException(404, [f"policy: {policy!r:.80} is none of {', '.join(live.policies)}"])
        return live.state(policy)

    @app.get("/v1/metrics/summary")
    def metrics_summary() -> MetricsSummary:
        """What every policy's cache has done since the server started."""
        return live.summary()

    @app.get("/v1/traces/latest", responses={422: _PROBLEMS[422]})
    def latest_trace(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[TraceRequest]:
        """The last requests as a trace that `replay-trace` reads: hashes, types and sizes, never texts."""
        return live.trace(limit)


def _add_experiment_routes(app: FastAPI, output_dir: Path) -> None:
    running = threading.Lock()
    folder = output_dir / "experiments"

    @app.get("/v1/experiments")
    def experiments() -> list[ShippedExperiment]:
        """The experiments that can be run."""
        return [_shipped(name) for name in shipped_experiments()]

    @app.post("/v1/experiments/run", responses={**_PROBLEMS, **_NOT_FOUND, **_BUSY})
    def run(order: RunOrder) -> RunDone:
        """Run one experiment and write its folder. One at a time."""
        if order.experiment not in shipped_experiments():
            known = ", ".join(shipped_experiments())
            raise HTTPException(404, [f"experiment: {order.experiment!r:.80} is none of {known}"])
        if not running.acquire(blocking=False):
            raise HTTPException(409, ["an experiment is running; try again when it is done"])
        try:
            return _run(order, folder)
        except InputError as error:
            raise HTTPException(422, str(error).splitlines()) from None
        finally:
            running.release()

    @app.get(
        "/v1/experiments/runs/{run}/{name}", responses={**_NOT_FOUND, 422: _PROBLEMS[422]}, response_class=FileResponse
    )
    def figure(run: str, name: str) -> FileResponse:
        """A picture of a run that is done."""
        path = folder / run / name
        if name not in EXPERIMENT_FIGURES or not _RUN.fullmatch(run) or not path.is_file():
            raise HTTPException(404, ["there is no such run or picture"])
        return FileResponse(path, media_type="image/png")


def _run(order: RunOrder, folder: Path) -> RunDone:
    config = load_experiment(order.experiment, **order.model_dump(exclude={"experiment"}))
    result = run_experiment(config)
    written = write_run(result, folder)
    return RunDone(
        run=written.name,
        summary=summary_of(result),
        figures=[f"/v1/experiments/runs/{written.name}/{name}" for name in EXPERIMENT_FIGURES],
        policies=result.policies,
        belady=result.belady,
    )


def _shipped(name: str) -> ShippedExperiment:
    config = load_experiment(name)
    return ShippedExperiment(
        name=name,
        description=config.description,
        semantics=config.semantics,
        cache_token_budget=config.budget_tokens,
        requests=config.requests,
        policies=config.policies,
    )


async def _refused(request: Request, error: Exception) -> JSONResponse:
    """Without what was sent: a number that is none, or half a character, could not be written back."""
    assert isinstance(error, RequestValidationError)
    lines = []
    for problem in error.errors()[:20]:
        field = ".".join(str(part) for part in problem["loc"])[:200]
        lines.append(f"{field}: {str(problem['msg']).removeprefix('Value error, ')[:300]}")
    return JSONResponse({"detail": [_printable(line) for line in lines]}, status_code=422)


async def _problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    detail = error.detail if isinstance(error.detail, list) else [str(error.detail)]
    return JSONResponse(
        {"detail": [_printable(line) for line in detail]}, status_code=error.status_code, headers=error.headers
    )


def _printable(line: str) -> str:
    return line.encode("utf-8", "replace").decode()
