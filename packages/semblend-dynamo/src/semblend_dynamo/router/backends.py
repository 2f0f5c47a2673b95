"""Two ways to a replica: straight to it, or by an smg gateway that is told which one."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from semblend_dynamo.gateway.headers import RawHeaders, header
from semblend_dynamo.gateway.upstream import AttemptFailedError, Failure, Upstream
from semblend_dynamo.router.replicas import Replica

_PIN = b"x-smg-target-worker"
_LANDED = b"x-smg-routed-worker-id"
_GATEWAY_TRIES = 3
_PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Target:
    """Where one attempt goes."""

    url: str
    replica: Replica | None
    """None: the gateway chooses."""
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Backend(ABC):
    """``replicas`` changes only in ``probe``."""

    replicas: list[Replica]

    @abstractmethod
    def targets(self, chosen: Replica, others: Sequence[Replica]) -> Iterator[Target]:
        """Where to try, in this order, until somebody answers."""

    @abstractmethod
    def landed(self, target: Target, headers: RawHeaders) -> Replica | None:
        """Who says that it answered; None: nobody does."""

    @abstractmethod
    def failed(self, target: Target, error: AttemptFailedError) -> None:
        """An attempt gave no answer."""

    @abstractmethod
    async def probe(self, upstream: Upstream) -> list[Replica]:
        """Look after the replicas. Returns those that are newly gone: what they held is to be forgotten."""

    @abstractmethod
    def a_url(self) -> str:
        """Where to ask what any of them can answer."""


class DirectBackend(Backend):
    def __init__(self, replicas: list[Replica], probe_path: str) -> None:
        self.replicas = replicas
        self._probe_path = probe_path

    def targets(self, chosen: Replica, others: Sequence[Replica]) -> Iterator[Target]:
        for replica in (chosen, *(each for each in others if each is not chosen)):
            yield Target(replica.url, replica)

    def landed(self, target: Target, headers: RawHeaders) -> Replica | None:
        return target.replica  # The connection was to nobody else.

    def failed(self, target: Target, error: AttemptFailedError) -> None:
        if target.replica is not None:
            target.replica.failed(error.failure)

    async def probe(self, upstream: Upstream) -> list[Replica]:
        gone = []
        found = await asyncio.gather(*(_answers(upstream, each.url + self._probe_path) for each in self.replicas))
        for replica, healthy in zip(self.replicas, found, strict=True):
            was, replica.healthy = replica.healthy, healthy
            if was and not replica.healthy:
                gone.append(replica)
            if replica.healthy and was is False:
                # It is back: no need to wait for the breaker to try it.
                replica.breaker.succeeded()
        return gone

    def a_url(self) -> str:
        ready = [each for each in self.replicas if each.available] or self.replicas
        return ready[0].url


class SmgBackend(Backend):
    """smg chooses by an index of its own order. The list that it shows is a first guess at that order; every answer
    says which worker it came from, and so corrects the guess."""

    def __init__(self, url: str, make_replica: Callable[[str, str], Replica]) -> None:
        self.replicas = []
        self._url = url
        self._make = make_replica
        self._index: dict[str, int] = {}
        self._listed: list[str] = []
        self._names = 0

    def targets(self, chosen: Replica, others: Sequence[Replica]) -> Iterator[Target]:
        index = self._index.get(chosen.url)
        if index is not None:
            yield Target(self._url, chosen, ((_PIN, str(index).encode()),))
        # A pin never fails over. Without one smg sends the request to whoever lives.
        for _ in range(_GATEWAY_TRIES):
            yield Target(self._url, None)

    def landed(self, target: Target, headers: RawHeaders) -> Replica | None:
        url = header(headers, _LANDED).rstrip("/")
        replica = next((each for each in self.replicas if each.url == url), None)
        if replica is not None and target.headers and target.replica is not replica:
            self._correct(target.replica, replica, int(target.headers[0][1]))
        return replica

    def _correct(self, meant: Replica | None, met: Replica, index: int) -> None:
        """``index`` is ``met``'s. The one that was meant may then have the index that ``met`` was thought to have."""
        freed = self._index.pop(met.url, None)
        self._index[met.url] = index
        if meant is not None and self._index.get(meant.url) == index:
            del self._index[meant.url]
            if freed is not None:
                self._index[meant.url] = freed

    def failed(self, target: Target, error: AttemptFailedError) -> None:
        # A refused pin speaks of its worker; anything else could be anybody's, or the gateway itself that is away.
        if target.replica is not None and error.failure is Failure.CONNECT:
            target.replica.breaker.gave_up()
        elif target.replica is not None and error.failure is not Failure.BUSY:
            told = Failure.UNAVAILABLE if error.failure is Failure.STATUS else error.failure
            target.replica.failed(told)

    async def probe(self, upstream: Upstream) -> list[Replica]:
        listed = await _workers(upstream, self._url)
        if listed is None:
            return []
        by_url = {each.url: each for each in self.replicas}
        gone = [each for url, each in by_url.items() if url not in dict(listed)]
        for url, healthy in listed:
            if url not in by_url:
                by_url[url] = self._make(f"replica-{self._names}", url)
                self._names += 1
            replica = by_url[url]
            if replica.healthy and not healthy:
                gone.append(replica)
            replica.healthy = healthy
        urls = [url for url, _ in listed]
        if urls != self._listed:
            # Another fleet, another order: what was learnt from answers holds no longer.
            self._listed = urls
            self._index = {url: number for number, url in enumerate(urls)}
        self.replicas = [by_url[url] for url in urls]
        return gone

    def a_url(self) -> str:
        return self._url


async def _answers(upstream: Upstream, url: str) -> bool:
    try:
        return (await upstream.page(url, timeout_s=_PROBE_TIMEOUT_S)).status == 200
    except AttemptFailedError:
        return False


async def _workers(upstream: Upstream, url: str) -> list[tuple[str, bool]] | None:
    """Address and health of smg's workers; None where it gives no list."""
    try:
        answer = json.loads((await upstream.page(f"{url}/workers", timeout_s=_PROBE_TIMEOUT_S)).body)
        return [(str(each["url"]).rstrip("/"), bool(each.get("is_healthy", True))) for each in answer["workers"]]
    except (AttemptFailedError, ValueError, KeyError, TypeError, AttributeError):
        return None
