"""The ASGI application, and the command ``semblend-router``."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.routing import Route

from semblend_core.settings import SettingError
from semblend_dynamo.gateway.errors import Refusal
from semblend_dynamo.gateway.headers import to_replica
from semblend_dynamo.gateway.secret_file import ConfigurationError
from semblend_dynamo.gateway.serving import serve
from semblend_dynamo.gateway.upstream import AttemptFailedError
from semblend_dynamo.router.building import Router, build_router
from semblend_dynamo.router.settings import RouterSettings
from semblend_dynamo.router.status import replica_list, status_of

_PAGE = files("semblend_dynamo.router").joinpath("status.html")
_MODELS_TIMEOUT_S = 10.0


def create_app(router: Router) -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await router.probe()
        probing = asyncio.create_task(router.look_after_replicas())
        yield
        probing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probing
        await router.close()

    # No generated documentation: it would be the only page here that loads scripts from elsewhere.
    app = FastAPI(title="semblend-router", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.router = router
    for path in ("/v1/chat/completions", "/v1/completions"):
        app.router.routes.append(Route(path, router.service, methods=["POST"]))
    _add_operator_pages(app, router)

    @app.get("/health")
    async def health() -> Response:
        alive = sum(each.available for each in router.backend.replicas)
        body = {"status": "ok" if alive else "no replica available", "replicas": alive}
        return JSONResponse(body, 200 if alive else 503)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        """As a replica answers it."""
        headers = to_replica(request.scope["headers"])
        try:
            url = f"{router.backend.a_url()}/v1/models"
            answer = await router.upstream.page(url, headers, timeout_s=_MODELS_TIMEOUT_S)
        except AttemptFailedError:
            return _refused(Refusal(502, "no_answer", "no replica gave an answer"))
        return Response(answer.body, answer.status, media_type=answer.content_type or None)

    return app


def _add_operator_pages(app: FastAPI, router: Router) -> None:
    def allowed(request: Request) -> bool:
        given = _token_in(request.headers.get("authorization", ""))
        return not router.operator_token or secrets.compare_digest(given.encode(), router.operator_token.encode())

    def guarded(make: Any) -> Any:
        async def page(request: Request) -> Response:
            if not allowed(request):
                refused = _refused(Refusal(401, "operator_token", "the operator's token is wrong or missing"))
                refused.headers["www-authenticate"] = 'Basic realm="semblend-router: the token is the password"'
                return refused
            answer: Response = make()
            answer.headers["cache-control"] = "no-store"
            return answer

        return page

    def html() -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        return Response(
            _PAGE.read_bytes(), media_type="text/html; charset=utf-8", headers={"content-security-policy": policy}
        )

    pages = {
        "/status": html,
        "/status.json": lambda: JSONResponse(status_of(router)),
        "/v1/replicas": lambda: JSONResponse({"replicas": replica_list(router)}),
        "/metrics": lambda: Response(router.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8"),
    }
    for path, make in pages.items():
        app.add_route(path, guarded(make), methods=["GET"])


def _token_in(authorization: str) -> str:
    """The token that a program sends, or the password that a browser asks for: it can send no other kind."""
    kind, _, given = authorization.partition(" ")
    if kind.lower() == "bearer":
        return given
    with contextlib.suppress(ValueError):
        if kind.lower() == "basic":
            return base64.b64decode(given).decode("latin-1").partition(":")[2]
    return ""


def _refused(refusal: Refusal) -> Response:
    return Response(refusal.body(), refusal.status, media_type="application/json")


def app_from_environment() -> FastAPI:
    return create_app(build_router(RouterSettings.from_env()))


def main() -> None:
    """``semblend-router``: what it needs comes from ``SEMBLEND_ROUTER_*``."""
    if len(sys.argv) > 1:
        known = sys.argv[1] in ("-h", "--help")
        print("semblend-router takes no arguments; set SEMBLEND_ROUTER_REPLICAS and see docs/routing.md")
        raise SystemExit(0 if known else 2)
    try:
        settings = RouterSettings.from_env()
        app = create_app(build_router(settings))
    except (ConfigurationError, SettingError) as error:
        raise SystemExit(f"semblend-router: {error}") from None
    print(settings.describe(), flush=True)
    serve(app, settings.host, settings.port)
