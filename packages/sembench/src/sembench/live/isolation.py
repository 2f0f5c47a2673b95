"""Keeping arms apart: what an arm must not find, and the proof that it did not."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import httpx

from sembench.live.endpoint import QUICK_TIMEOUT_S, Reply
from sembench.live.streaming import RequestFailedError, failure_of_response, failure_of_transport

CachedTokens = Literal["reported", "zero omitted", "always zero", "not reported", "not asked"]
_RESET_TRIES = 20
_RESET_PAUSE_S = 0.25


@dataclass(frozen=True)
class Capabilities:
    """What the preflight found the server able to do; each was tried, not believed."""

    cached_tokens: CachedTokens = "not asked"
    """``zero omitted``: it states the count for a repeated prompt and says nothing for a new one."""
    salt: bool = False
    """A prompt with another cache salt finds nothing of the same prompt's KV."""
    accepts_salt: bool = False
    """A request with a salt is served, whatever comes of the salt."""
    reset_urls: tuple[str, ...] = ()
    """POST here, and a repeated prompt finds nothing of its KV."""
    reuse_off: bool = False
    """The field that switches semantic reuse off for a request is accepted."""
    template_tokens: int = 0
    """Most tokens that the chat template alone can bring into the cache."""


@dataclass(frozen=True)
class Scope:
    """What the requests of one arm share, and no other request does."""

    salt: str | None = None
    prefix: str = ""
    how: str = "nothing"


@dataclass(frozen=True)
class ColdProof:
    proved: bool | None
    """False: it was warm. None: nothing can tell."""
    text: str


class Isolation:
    """Opens scopes. Salts where the server knows them, resets where it can be reset, else a new first line.

    ``tenant`` is the salt of what needs none of its own: servers that share by salt share nothing without one.
    """

    def __init__(self, client: httpx.AsyncClient, able: Capabilities, *, concurrency: int, tenant: str = "") -> None:
        self._client = client
        self._able = able
        # A reset would take away what another item in flight has just been given.
        self._resets = able.reset_urls if concurrency == 1 else ()
        self.shared = Scope(salt=tenant or None if able.accepts_salt else None)
        """What all traffic of the tenant has in common."""

    @property
    def how(self) -> str:
        means = ["reset"] if self._resets else []
        means += ["new cache salt"] if self._able.salt else []
        return " and ".join(means) or "new first line"

    async def open(self) -> Scope:
        if self._resets:
            await reset_all(self._client, self._resets)
        apart = self._able.salt or self._resets
        salt = secrets.token_hex(16) if self._able.salt else self.shared.salt
        return Scope(salt, "" if apart else f"Session {secrets.token_hex(8)}.\n\n", self.how)

    def apart(self) -> Scope:
        """The tenant's, and shared with no other: as far as the server takes salts."""
        shared = self.shared
        return shared if shared.salt is None else Scope(salt=f"{shared.salt}-{secrets.token_hex(8)}")

    def prove_cold(self, scope: Scope, reply: Reply) -> ColdProof:
        """The engine's own count decides; how the scope was made only says why it should be 0."""
        cached = reply.cached_tokens
        if cached is None and self._able.cached_tokens != "zero omitted":
            return ColdProof(None, f"{scope.how}; the engine does not report cached_tokens, so nothing proves it cold")
        if cached == 0 and self._able.cached_tokens == "always zero":
            return ColdProof(None, f"{scope.how}; the engine reports 0 cached tokens even for a repeated prompt")
        allowed = self._able.template_tokens
        if cached is not None and cached > allowed:
            beyond = f", more than the template's {allowed}" if allowed else ""
            return ColdProof(False, f"refused as warm: {scope.how}, yet {cached} cached tokens{beyond}")
        told = "no cached tokens, which it does for a repeated prompt" if cached is None else f"{cached} cached tokens"
        return ColdProof(True, f"{scope.how}; the engine reported {told}")


async def reset_all(client: httpx.AsyncClient, urls: Sequence[str]) -> None:
    for url in urls:
        await _reset(client, url)


async def find_reset(client: httpx.AsyncClient, base_url: str, paths: Sequence[str]) -> str | None:
    """The first of ``paths`` that the server obeys."""
    for path in paths:
        try:
            await _reset(client, f"{base_url}{path}")
        except RequestFailedError:
            continue
        return f"{base_url}{path}"
    return None


async def _reset(client: httpx.AsyncClient, url: str) -> None:
    """Servers refuse while a request still holds blocks; that passes within moments of its end."""
    for _ in range(_RESET_TRIES):
        try:
            response = await client.post(url, timeout=QUICK_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise failure_of_transport(error) from None
        if response.is_success and not _says_no(response):
            return
        if response.status_code in (404, 405, 401, 403):
            raise failure_of_response(response)
        await asyncio.sleep(_RESET_PAUSE_S)
    raise RequestFailedError(f"{url} did not reset: {response.text[:200]}", retryable=True)


def _says_no(response: httpx.Response) -> bool:
    try:
        answer = response.json()
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("success") is False
