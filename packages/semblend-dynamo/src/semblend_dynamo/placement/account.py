"""What placement did and what it brought, by the workers' own word."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

RECENT = 128


@dataclass(frozen=True, slots=True)
class Placed:
    """One request, once its first output came."""

    request_id: str
    reason: str
    chosen: str | None
    """Worker that the decision named; None: the router's own rule decided."""
    landed: str | None
    """Worker that served it, as the answer said; None: it did not say."""
    prompt_tokens: int
    credit_tokens: int
    cached_tokens: int | None
    """Tokens that the worker said it had not to compute; None: it did not say."""
    decide_ms: float
    fell_back: bool = False
    """The worker named did not answer, and the router's own rule took over."""


class Account:
    """Thread-safe. Counters since start and the last decisions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._landed_as_chosen: Counter[str] = Counter()
        self._prompt_tokens: Counter[str] = Counter()
        self._cached_tokens: Counter[str] = Counter()
        self._said_cached: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._decide_ms_total = 0.0
        self._recent: deque[Placed] = deque(maxlen=RECENT)

    def note(self, placed: Placed) -> None:
        with self._lock:
            reason = placed.reason
            self._requests[reason] += 1
            self._prompt_tokens[reason] += placed.prompt_tokens
            if placed.chosen is not None and placed.chosen == placed.landed:
                self._landed_as_chosen[reason] += 1
            if placed.cached_tokens is not None:
                self._said_cached[reason] += 1
                self._cached_tokens[reason] += placed.cached_tokens
            if placed.fell_back:
                self._events["fell_back"] += 1
            self._decide_ms_total += placed.decide_ms
            self._recent.append(placed)

    def count(self, event: str, times: int = 1) -> None:
        with self._lock:
            self._events[event] += times

    def report(self) -> dict[str, Any]:
        """By reason: how many requests, where they landed, and how much the workers said they had cached."""
        with self._lock:
            reasons = {
                reason: {
                    "requests": self._requests[reason],
                    "landed_as_chosen": self._landed_as_chosen[reason],
                    "prompt_tokens": self._prompt_tokens[reason],
                    # Unknown is null, not 0.
                    "cached_tokens": self._cached_tokens[reason] if self._said_cached[reason] else None,
                }
                for reason in sorted(self._requests)
            }
            total = sum(self._requests.values())
            return {
                "requests": total,
                "reasons": reasons,
                "events": dict(sorted(self._events.items())),
                "mean_decide_ms": round(self._decide_ms_total / total, 3) if total else None,
                "recent": [asdict(each) for each in self._recent],
            }


def as_prometheus(report: Mapping[str, Any], gauges: Mapping[str, float]) -> str:
    """The report's counters in Prometheus' text format."""
    lines = ["# TYPE semblend_placement_requests_total counter"]
    for reason, row in report["reasons"].items():
        lines.append(f'semblend_placement_requests_total{{reason="{reason}"}} {row["requests"]}')
    lines.append("# TYPE semblend_placement_landed_as_chosen_total counter")
    for reason, row in report["reasons"].items():
        lines.append(f'semblend_placement_landed_as_chosen_total{{reason="{reason}"}} {row["landed_as_chosen"]}')
    lines.append("# TYPE semblend_placement_cached_tokens_total counter")
    for reason, row in report["reasons"].items():
        if row["cached_tokens"] is not None:
            lines.append(f'semblend_placement_cached_tokens_total{{reason="{reason}"}} {row["cached_tokens"]}')
    lines.append("# TYPE semblend_placement_events_total counter")
    lines += [f'semblend_placement_events_total{{event="{name}"}} {n}' for name, n in report["events"].items()]
    for name, value in gauges.items():
        lines += [f"# TYPE semblend_placement_{name} gauge", f"semblend_placement_{name} {value:g}"]
    return "\n".join(lines) + "\n"
