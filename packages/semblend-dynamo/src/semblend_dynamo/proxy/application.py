"""The ASGI application, and the command ``semblend-proxy``."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.routing import Route

from semblend_core.settings import SettingError
from semblend_dynamo.gateway.answering import Told, pass_on, refuse
from semblend_dynamo.gateway.bodies import (
    BodyMemory,
    BodyReader,
    ClientLeftError,
    Receive,
    Scope,
    Send,
    parse_beside,
)
from semblend_dynamo.gateway.errors import Refusal
from semblend_dynamo.gateway.headers import to_replica
from semblend_dynamo.gateway.identity import caller_of
from semblend_dynamo.gateway.leaving import UntilClientLeaves
from semblend_dynamo.gateway.replica_address import checked_address
from semblend_dynamo.gateway.secret_file import ConfigurationError, read_secret
from semblend_dynamo.gateway.serving import serve
from semblend_dynamo.gateway.upstream import AttemptFailedError, Failure, Limits, Upstream
from semblend_dynamo.proxy.settings import ProxySettings
from semblend_dynamo.proxy.traces import Traced, TraceWriter

_BODY_TIMEOUT_S = 30.0
_BODIES = 16
"""Bodies of the largest size that are held at once."""
_CONNECT_S = 5.0
_MODELS_TIMEOUT_S = 10.0


class ProxyMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "semblend_proxy"
        self.requests = Counter(f"{prefix}_requests", "Requests ended.", ["status"], registry=self.registry)
        self.ttft = Histogram(f"{prefix}_ttft_seconds", "To an answer's first byte.", registry=self.registry)
        self.total = Histogram(f"{prefix}_latency_seconds", "To an answer's end.", registry=self.registry)


class ProxyService:
    """An ASGI application for ``/v1/chat/completions`` and ``/v1/completions``."""

    def __init__(self, settings: ProxySettings, address: str, upstream: Upstream, traces: TraceWriter) -> None:
        self._address = address
        self._upstream = upstream
        self._traces = traces
        self._timeout_s = settings.timeout_s
        self._bodies = BodyReader(settings.max_body, _BODY_TIMEOUT_S, BodyMemory(_BODIES * settings.max_body))
        self.metrics = ProxyMetrics()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 499

        async def watched_send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        caller = caller_of(scope["headers"], "x-tenant-id")
        own = [(b"x-request-id", caller.request_id.encode())]
        started, started_at = time.perf_counter(), time.time()
        fields: dict[str, Any] | None = None
        told: Told | None = None
        body = b""
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._bodies.read(scope, receive)
                fields = await parse_beside(body)
                async with UntilClientLeaves(receive):
                    headers = to_replica(scope["headers"])
                    url, stream = self._address + scope["path"], fields.get("stream") is True
                    begun = await self._upstream.attempt(url, headers, body, wants_stream=stream, judged=False)
                    async with begun as answer:
                        told = await pass_on(answer, watched_send, own, self._timeout_s)
        except ClientLeftError:
            pass
        except Refusal as refusal:
            await refuse(refusal, watched_send, own)
        except AttemptFailedError as error:
            code = 504 if error.failure is Failure.TIMEOUT else 502
            await refuse(Refusal(code, "upstream", "the server behind the proxy gave no answer"), watched_send, own)
        except TimeoutError:
            if status == 499:
                await refuse(Refusal(504, "timeout", f"it took longer than {self._timeout_s:g} s"), watched_send, own)
        finally:
            self._bodies.give_back(body)
            ended = time.perf_counter()
            self.metrics.requests.labels(str(status)).inc()
            first = told.first_byte_at if told else None
            if told and first:
                self.metrics.ttft.observe(first - started)
                self.metrics.total.observe(ended - started)
            if fields is not None:
                self._traces.write(
                    Traced(
                        caller=caller,
                        body=fields,
                        timestamp_ms=started_at * 1000,
                        ttft_ms=(first - started) * 1000 if first else None,
                        total_ms=(ended - started) * 1000 if told else None,
                        status=status,
                        prompt_tokens=told.prompt_tokens if told else None,
                        cached_tokens=told.cached_tokens if told else None,
                        size=len(body),
                    )
                )


def create_app(settings: ProxySettings) -> FastAPI:
    named = settings.variable("upstream")
    if not settings.upstream:
        raise ConfigurationError(f"there is no server behind the proxy: set {named}=http://host:port")
    address = checked_address(settings.upstream, named)
    key = settings.hash_key_file
    secret = read_secret(key, settings.variable("hash_key_file")) if key else ""
    try:
        traces = TraceWriter(
            Path(settings.trace_dir), redact=settings.redact, hash_key=secret, limit=settings.trace_bytes
        )
    except OSError as error:
        what = f"{settings.variable('trace_dir')}={settings.trace_dir!r}"
        raise ConfigurationError(f"{what}: no trace can be written there ({type(error).__name__})") from None
    upstream = Upstream(Limits(_CONNECT_S, settings.timeout_s, settings.timeout_s, settings.timeout_s))
    service = ProxyService(settings, address, upstream, traces)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await upstream.close()
        traces.close()

    app = FastAPI(title="semblend-proxy", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.traces = traces
    for path in ("/v1/chat/completions", "/v1/completions"):
        app.router.routes.append(Route(path, service, methods=["POST"]))

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok", "traced": traces.written, "not_traced": traces.dropped})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        try:
            sent = to_replica(request.scope["headers"])
            answer = await upstream.page(f"{address}/v1/models", sent, timeout_s=_MODELS_TIMEOUT_S)
        except AttemptFailedError:
            refusal = Refusal(502, "upstream", "the server behind the proxy gave no answer")
            return Response(refusal.body(), refusal.status, media_type="application/json")
        return Response(answer.body, answer.status, media_type=answer.content_type or None)

    return app


def app_from_environment() -> FastAPI:
    return create_app(ProxySettings.from_env())


def main() -> None:
    """``semblend-proxy``: what it needs comes from ``SEMBLEND_PROXY_*``."""
    if len(sys.argv) > 1:
        print("semblend-proxy takes no arguments; set SEMBLEND_PROXY_UPSTREAM and see docs/routing.md")
        raise SystemExit(0 if sys.argv[1] in ("-h", "--help") else 2)
    try:
        settings = ProxySettings.from_env()
        app = create_app(settings)
    except (ConfigurationError, SettingError) as error:
        raise SystemExit(f"semblend-proxy: {error}") from None
    print(f"{settings.describe()}\ntrace: {app.state.traces.path}", flush=True)
    serve(app, settings.host, settings.port)
