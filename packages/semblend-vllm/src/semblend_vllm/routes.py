"""HTTP routes for operators, in vLLM's own server: ``VLLM_PLUGINS=semblend`` switches them on.

They speak with the engine by the sockets in ``SEMBLEND_CONTROL_DIR``, as the command does. Whoever knows the token in
``SEMBLEND_VLLM_CONTROL_TOKEN_FILE`` may use them: vLLM's own API keys are for clients.
"""

from __future__ import annotations

import json
import logging
import secrets
import stat
from pathlib import Path
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from semblend_core import Settings, tenant_of_salt
from semblend_core.control import ControlError, asked_of_engines
from semblend_vllm.settings import VllmSettings

logger = logging.getLogger(__name__)

SHORTEST_TOKEN = 16
LONGEST_BODY = 64 * 1024


class NoRoutesError(ValueError):
    """Why there are none; names the setting and the fix."""


class TenantRoutes:
    """What vLLM calls an endpoint plugin."""

    name: ClassVar[str] = "semblend"
    required_tasks: ClassVar[None] = None

    def attach_router(self, app: FastAPI) -> None:
        try:
            folder, token = _folder(Settings.from_env()), _token(VllmSettings.from_env())
        except (NoRoutesError, OSError) as error:
            logger.error("SemBlend's routes are off: %s", error)
            return
        for command in ("show", "purge"):
            app.add_api_route(f"/semblend/tenants/{command}", _route(command, folder, token), methods=["POST"])

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Nothing to prepare."""


def _route(command: str, folder: Path, token: str) -> Any:
    async def answer(request: Request) -> JSONResponse:
        given = request.headers.get("authorization", "").encode()
        if not secrets.compare_digest(given, f"Bearer {token}".encode()):
            return _error(401, "the operator's token is wrong or missing (Authorization: Bearer ...)")
        tenant = _tenant(await request.body())
        if tenant is None:
            return _error(400, 'the body is {"salt": "..."}, or {"unsalted": true} for requests without a salt')
        try:
            return JSONResponse(await run_in_threadpool(asked_of_engines, folder, command, tenant))
        except ControlError as error:
            return _error(503, str(error))

    return answer


def _error(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status_code=status)


def _tenant(body: bytes) -> str | None:
    """None where the body is not understood."""
    try:
        asked = json.loads(body) if len(body) <= LONGEST_BODY else None
    except (ValueError, RecursionError):
        return None
    if asked == {"unsalted": True}:
        return tenant_of_salt(None)
    if not isinstance(asked, dict) or set(asked) != {"salt"}:
        return None
    salt = asked["salt"]
    return tenant_of_salt(salt) if isinstance(salt, str) and salt else None


def _folder(settings: Settings) -> Path:
    if not settings.control_dir:
        raise NoRoutesError(f"set {settings.variable('control_dir')}, the folder of the engine's sockets")
    return Path(settings.control_dir)


def _token(settings: VllmSettings) -> str:
    named = settings.variable("control_token_file")
    if not settings.control_token_file:
        raise NoRoutesError(f"set {named}, a file that holds the operator's token")
    path = Path(settings.control_token_file)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise NoRoutesError(f"{named}={str(path)!r} may be read by others: run `chmod 600` on it")
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < SHORTEST_TOKEN or not token.isascii():
        raise NoRoutesError(f"{named}={str(path)!r} holds no token of at least {SHORTEST_TOKEN} ASCII characters")
    return token
