"""Replicas: what is known of each, and whether it should be asked now."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from semblend_dynamo.gateway.replica_address import checked_address
from semblend_dynamo.gateway.secret_file import ConfigurationError
from semblend_dynamo.gateway.upstream import Failure

_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)
"""Names go into headers and labels."""
_NOT_THE_REPLICAS_FAULT = (Failure.STATUS, Failure.BUSY)
"""These may be the request's doing: one client must not be able to shut replicas off for all others."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    """Asked as usual."""
    OPEN = "open"
    """Left alone."""
    HALF_OPEN = "half_open"
    """One request is trying it."""


class Breaker:
    """Opens after so many failures in a row, and closes with the first success."""

    def __init__(self, failures: int, open_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._open_s = open_s
        self._clock = clock
        self._in_a_row = 0
        self._opened_at: float | None = None
        self._trying = False

    @property
    def state(self) -> BreakerState:
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._trying else BreakerState.OPEN

    @property
    def admits(self) -> bool:
        if self._opened_at is None:
            return True
        return not self._trying and self._clock() - self._opened_at >= self._open_s

    def asked(self) -> None:
        self._trying = self._opened_at is not None

    def succeeded(self) -> None:
        self._in_a_row, self._opened_at, self._trying = 0, None, False

    def failed(self) -> None:
        self._in_a_row += 1
        self._trying = False
        if self._in_a_row >= self._limit:
            self._opened_at = self._clock()

    def gave_up(self) -> None:
        """The request ended without telling anything about the replica."""
        self._trying = False


@dataclass
class Replica:
    name: str
    """What clients are told; an address would tell them about the inside of the fleet."""
    url: str
    breaker: Breaker
    healthy: bool | None = None
    """What the last probe found; None: none yet."""
    in_flight: int = 0
    tokens_in_flight: int = 0
    """Prompt tokens still to be prefilled: those of requests that have not begun to answer, less what is held."""
    served: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    """As the replica itself counted them."""
    cached_tokens: int = 0
    """Of these: taken from its cache, exact and relocated together, as it said."""

    @property
    def available(self) -> bool:
        return self.healthy is not False and self.breaker.admits

    def begin(self, tokens: int) -> None:
        """A request is sent there: ``tokens`` of its prompt are to be prefilled."""
        self.in_flight += 1
        self.tokens_in_flight += tokens
        self.breaker.asked()

    def prefilled(self, tokens: int) -> None:
        """It has begun to answer, or gave none."""
        self.tokens_in_flight -= tokens

    def end(self) -> None:
        self.in_flight -= 1

    def answered(self) -> None:
        self.breaker.succeeded()
        self.served += 1

    def failed(self, failure: Failure) -> None:
        self.failures[failure.value] = self.failures.get(failure.value, 0) + 1
        if failure in _NOT_THE_REPLICAS_FAULT:
            self.breaker.gave_up()
        else:
            self.breaker.failed()


def addresses_in(text: str, variable: str) -> list[tuple[str, str]]:
    """Names and addresses; without a name of its own a replica is called by its place in the list."""
    found: list[tuple[str, str]] = []
    for number, part in enumerate(piece.strip() for piece in text.split(",") if piece.strip()):
        name, equals, url = part.partition("=")
        if not equals or "://" in name:
            name, url = f"replica-{number}", part
        if not _NAME.fullmatch(name.strip()):
            raise ConfigurationError(f"{variable}: {name!r} is no name; write up to 100 letters, digits, - . or _")
        found.append((name.strip(), checked_address(url.strip(), variable)))
    for kind, values in (("name", [name for name, _ in found]), ("address", [url for _, url in found])):
        twice = {value for value in values if values.count(value) > 1}
        if twice:
            raise ConfigurationError(f"{variable}: the {kind} {min(twice)!r} is there twice")
    return found


def least_busy(replicas: Sequence[Replica]) -> Replica:
    """The one with the fewest tokens under way; among equals, the one that has served least."""
    return min(replicas, key=lambda each: (each.tokens_in_flight, each.in_flight, each.served, each.name))
