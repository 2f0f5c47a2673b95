"""When forwards have ended. Engines that overlap ask for a step's results when they have launched the next: that may
take longer than the forward, and is not what the forward costs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

logger = logging.getLogger(__name__)

COMPARED_EVERY_S = 1.0
"""The device's clock with the host's. It counts in single precision: after an hour in quarters of a millisecond."""
MOST_COMPARING_S = 0.0005
"""What takes longer says nothing: streams may share a queue of the device, and this one may stand behind a forward."""
BELIEVED_FOR_S = 60.0
"""Clocks drift apart by some 20 millionths."""


class ForwardEnds:
    """Tells when forwards end, of one device. What fails once is not asked again: results tell then."""

    def __init__(self, clock: DeviceClock | None) -> None:
        """``clock``: None where nobody can tell."""
        self._clock = clock

    def mark(self) -> Any | None:
        """What was launched so far ends here. None: it cannot be told when."""
        return self._ask("marked", lambda clock: clock.mark())

    def ended(self, end: Any | None) -> float | None:
        """By ``time.perf_counter``; None: it goes on, or it cannot be told."""
        return None if end is None else self._ask("told", lambda clock: clock.ended(end))

    def _ask(self, what: str, ask: Callable[[DeviceClock], Any]) -> Any:
        if self._clock is None:
            return None
        try:
            return ask(self._clock)
        except Exception:
            logger.exception("the end of a forward could not be %s: steps are timed by their results from now on", what)
            self._clock = None
            return None


def forward_ends_on(device: torch.device, stream: torch.cuda.Stream | None = None) -> ForwardEnds:
    """``stream``: of the forwards; None: the one that is current when they are marked."""
    if device.type == "cuda":
        return ForwardEnds(_CudaClock(device, stream))
    return ForwardEnds(_HostClock() if device.type == "cpu" else None)


class DeviceClock(Protocol):
    def mark(self) -> Any | None:
        """None: just now it cannot be told."""

    def ended(self, end: Any) -> float | None:
        """None: it goes on."""


class _Comparison(NamedTuple):
    event: Any
    at: float
    """By ``time.perf_counter``."""


class _End(NamedTuple):
    event: Any
    comparison: _Comparison


class _CudaClock:
    """Nobody waits for a forward."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        self._stream, self._beside = stream, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._comparison: _Comparison | None = None
        self._tried_at = -COMPARED_EVERY_S

    def mark(self) -> _End | None:
        if time.perf_counter() - self._tried_at >= COMPARED_EVERY_S:
            self._compare()
        if self._comparison is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _End(event, self._comparison)

    def ended(self, end: _End) -> float | None:
        if not end.event.query():
            return None
        return end.comparison.at + float(end.comparison.event.elapsed_time(end.event)) / 1e3

    def _compare(self) -> None:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        began = time.perf_counter()
        event.record(self._beside)
        reached = False
        while not reached and time.perf_counter() - began <= MOST_COMPARING_S:
            reached = event.query()
        self._tried_at = time.perf_counter()
        if reached and self._tried_at - began <= MOST_COMPARING_S:
            self._comparison = _Comparison(event, (began + self._tried_at) / 2)
        elif self._comparison is not None and self._tried_at - self._comparison.at > BELIEVED_FOR_S:
            self._comparison = None


class _HostClock:
    """Of forwards that have ended when they return, as on a CPU."""

    def mark(self) -> float:
        return time.perf_counter()

    def ended(self, end: float) -> float:
        return end
