"""Is the server there, does it serve the model, and what can it prove? Asked before anything is measured."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.live.endpoint import Endpoint, Reply, ServerRequest
from sembench.live.isolation import CachedTokens, Capabilities, find_reset, reset_all
from sembench.live.streaming import RequestFailedError
from sembench.schema import InputError

_PROBE_WORDS = 320
_WORDS = ("river", "stone", "paper", "light", "garden", "window", "letter", "engine", "valley", "summer", "harbor")


@dataclass(frozen=True)
class Check:
    """One question to the server. ``ok`` None: it could not be asked."""

    name: str
    ok: bool | None
    detail: str
    required: bool = False


@dataclass
class Preflight:
    """What was found. ``refusal`` is None when the server can be used."""

    url: str
    checks: list[Check] = field(default_factory=list)
    able: Capabilities = field(default_factory=Capabilities)
    engine: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, ok: bool | None, detail: str, *, required: bool = False) -> None:
        self.checks.append(Check(name, ok, detail, required))

    @property
    def refusal(self) -> str | None:
        failed = next((check for check in self.checks if check.required and not check.ok), None)
        return f"{self.url}: {failed.name}: {failed.detail}" if failed else None

    def require(self) -> None:
        if self.refusal:
            raise InputError(f"preflight refused {self.refusal}", REFUSED_OUTSIDE)


async def preflight(
    endpoint: Endpoint,
    *,
    prove: bool = True,
    reset_urls: Sequence[str] = (),
    workers: Sequence[str] = (),
    reuse_off: Mapping[str, Any] | None = None,
) -> Preflight:
    """Ask everything; ``prove`` adds what paired runs need, and empties the server's cache where that can be done.

    ``workers``: the engines behind the endpoint, where a reset is looked for if ``reset_urls`` names none.
    """
    found = Preflight(endpoint.base_url)
    first = await _basics(endpoint, found)
    if first is None:
        return found
    if prove:
        await _prove(endpoint, found, first, reset_urls, workers or (endpoint.base_url,))
    if not found.able.accepts_salt and endpoint.tenant:
        await _offer_tenant(endpoint, found)
    if prove or reuse_off:
        await _small_questions(endpoint, found, reuse_off or {})
    return found


async def _basics(endpoint: Endpoint, found: Preflight) -> _Probe | None:
    """The probe that was served, or None where the server is refused."""
    try:
        models = await endpoint.models()
        described = await endpoint.describe()
    except RequestFailedError as error:
        found.add("reachable", False, str(error), required=True)
        return None
    found.add("reachable", True, _in_words(described) or "says nothing of itself", required=True)
    endpoint.model = endpoint.model or (models or [""])[0]
    found.engine = {**described, "model": endpoint.model, "url": endpoint.base_url, "protocol": endpoint.engine}
    if models is None:
        found.add("model listed", None, "the server lists no models; the request below decides")
    elif endpoint.model not in models:
        served = ", ".join(models) or "none"
        found.add("model listed", False, f"--model {endpoint.model} is not served; served: {served}", required=True)
        return None
    else:
        found.add("model listed", True, endpoint.model, required=True)
    return await _first_probe(endpoint, found)


async def _first_probe(endpoint: Endpoint, found: Preflight) -> _Probe | None:
    probe = _Probe(endpoint)
    try:
        reply = await probe.ask()
    except RequestFailedError as error:
        found.add("streams", False, str(error), required=True)
        return None
    if reply.ttft_ms is None:
        found.add("streams", None, "the answer to the probe was empty")
    else:
        found.add("streams", True, f"first text after {reply.ttft_ms:.0f} ms", required=True)
    told = reply.prompt_tokens is not None
    detail = f"{reply.prompt_tokens} prompt tokens" if told else "no usage: prompt lengths and blocks stay unknown"
    found.add("reports usage", told, detail)
    probe.first = reply
    return probe


class _Probe:
    """A prompt that no cache can know, asked again and again."""

    first: Reply

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._nonce = secrets.token_hex(8)
        self._text = unknown_text(self._nonce, _PROBE_WORDS)
        self._asked = 0

    async def ask(self, salt: str | None = None) -> Reply:
        self._asked += 1
        name = f"sb-preflight-{self._nonce}-{self._asked:03d}"
        return await self._endpoint.ask(ServerRequest(self._text, name, name, max_tokens=4, salt=salt))


def unknown_text(nonce: str, words: int) -> str:
    """Different from its first words on; simple words, so that it has about as many tokens."""
    listed = random.Random(nonce).choices(_WORDS, k=words)
    return f"Note {nonce}: {' '.join(listed)}. In one word, the note lists"


async def warm_up(endpoint: Endpoint, requests: int, *, words: int, max_tokens: int) -> None:
    """Unmeasured requests of the run's greatest length: engines compile and allocate at the first of a kind.

    The text is made up and unrelated, so nothing of the run is in a cache because of it.
    """
    for _ in range(requests):
        nonce = secrets.token_hex(8)
        name = f"sb-warmup-{nonce}"
        try:
            await endpoint.ask(ServerRequest(unknown_text(nonce, words), name, name, max_tokens))
        except RequestFailedError:
            return  # the run itself will meet and record the fault


async def _prove(
    endpoint: Endpoint, found: Preflight, probe: _Probe, reset_urls: Sequence[str], workers: Sequence[str]
) -> None:
    """Does a repeated prompt show as cached, and do salts and resets make it new again?"""
    try:
        repeated = (await probe.ask()).cached_tokens
    except RequestFailedError as error:
        found.add("reports cached tokens", None, f"the repeated prompt failed: {error}")
        return
    told, detail = _how_cached_is_told(probe.first.cached_tokens, repeated)
    found.add("reports cached tokens", told not in ("not reported", "always zero"), detail)
    found.able = replace(found.able, cached_tokens=told)
    salt = await _salt_isolates(endpoint, found, probe, repeated)
    resets = await _resets(endpoint, found, probe, repeated, reset_urls, workers)
    found.able = replace(found.able, salt=salt, reset_urls=resets)


def _how_cached_is_told(first: int | None, repeated: int | None) -> tuple[CachedTokens, str]:
    if repeated is None:
        return "not reported", "no: a cold arm cannot be proved cold (vLLM: --enable-prompt-tokens-details)"
    if repeated == 0:
        return "always zero", "0 even for a repeated prompt: a 0 proves nothing (no prefix cache, or another worker)"
    if first is None:
        return "zero omitted", f"{repeated} for a repeated prompt, nothing for a new one"
    return "reported", f"{repeated} for a repeated prompt, {first} for a new one"


async def _salt_isolates(endpoint: Endpoint, found: Preflight, probe: _Probe, repeated: int | None) -> bool:
    name = f"cache salt ({endpoint.salt_field})"
    if not repeated:
        found.add(name, None, "cannot be tested where no repeat is seen in the cache")
        return False
    try:
        salted = (await probe.ask(salt=secrets.token_hex(16))).cached_tokens
    except RequestFailedError as error:
        found.add(name, False, f"refused: {error}")
        return False
    found.able = replace(found.able, accepts_salt=True)
    found.add(name, not salted, f"{salted} of {repeated} cached tokens under a new salt" if salted else "isolates")
    return not salted


async def _offer_tenant(endpoint: Endpoint, found: Preflight) -> None:
    """Is the tenant taken as cache salt? Engines that share by salt share nothing with requests that have none."""
    name = f"sb-preflight-{secrets.token_hex(8)}"
    try:
        await endpoint.ask(ServerRequest("x", name, name, max_tokens=1, salt=endpoint.tenant))
    except RequestFailedError as error:
        found.add(f"tenant as {endpoint.salt_field}", False, f"refused: {error}")
        return
    found.add(f"tenant as {endpoint.salt_field}", True, "accepted")
    found.able = replace(found.able, accepts_salt=True)


async def _resets(
    endpoint: Endpoint,
    found: Preflight,
    probe: _Probe,
    repeated: int | None,
    reset_urls: Sequence[str],
    workers: Sequence[str],
) -> tuple[str, ...]:
    try:
        urls = tuple(reset_urls)
        await reset_all(endpoint.client, urls)
        if not urls:
            looked = [await find_reset(endpoint.client, worker, endpoint.reset_paths) for worker in workers]
            urls = tuple(url for url in looked if url)
        if not urls:
            found.add("reset", False, "none found; name one with --reset-url (vLLM: VLLM_SERVER_DEV_MODE=1)")
            return ()
        left = (await probe.ask()).cached_tokens
    except RequestFailedError as error:
        found.add("reset", False, str(error))
        return ()
    if not repeated:
        found.add("reset", None, f"{', '.join(urls)} obeys, and cannot be tested where no repeat is seen in the cache")
        return ()
    found.add("reset", not left, f"{left} cached tokens after {', '.join(urls)}" if left else ", ".join(urls))
    return () if left else urls


async def _small_questions(endpoint: Endpoint, found: Preflight, reuse_off: Mapping[str, Any]) -> None:
    """Is the switch for reuse accepted, and how long is the chat template?"""
    name = f"sb-preflight-{secrets.token_hex(8)}"
    request = ServerRequest("x", name, name, max_tokens=1, extra=reuse_off)
    accepted = bool(reuse_off)
    try:
        reply = await endpoint.ask(request)
    except RequestFailedError as error:
        accepted = False
        found.add("reuse switch", False, f"refused: {error}")
        try:
            reply = await endpoint.ask(replace(request, extra={}))
        except RequestFailedError:
            return
    else:
        if reuse_off:
            found.add("reuse switch", True, "accepted (a server without reuse ignores it)")
    chat = getattr(endpoint, "template", "completion") == "chat"
    template_tokens = (reply.prompt_tokens or 0) if chat else 0
    found.able = replace(found.able, reuse_off=accepted, template_tokens=template_tokens)


def _in_words(described: Mapping[str, Any]) -> str:
    return " ".join(str(described[name]) for name in ("name", "version") if described.get(name))
