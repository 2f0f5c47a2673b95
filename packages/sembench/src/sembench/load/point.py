"""One point of a load curve: the published entry of a result's ``load``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]


class Percentiles(BaseModel):
    """Of ``n`` values; all None where there is none. A percentile of few values is little more than their largest."""

    model_config = ConfigDict(extra="forbid")

    n: Count
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles:
        ordered = sorted(values)
        if not ordered:
            return cls(n=0)
        shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
        found = {name: _quantile(ordered, share) for name, share in shares.items()}
        return cls(n=len(ordered), mean=sum(ordered) / len(ordered), **found)


class LoadPoint(BaseModel):
    """A closed loop keeps ``concurrency`` requests in flight; an open loop starts ``rate`` of them a second regardless.

    Counted are the requests that were due inside the window of ``duration_s`` after the warm-up. It is longer than was
    asked for where too few requests would have been due in it.
    """

    model_config = ConfigDict(extra="forbid")

    mode: Literal["closed", "open"]
    concurrency: Count | None = None
    """Closed loop: requests in flight."""
    rate: float | None = None
    """Open loop: arrivals per second, on average."""
    reuse_share: Annotated[float, Field(ge=0, le=1)]
    """Share of the requests that are recipients of donors served before; the others share no block with anything."""
    warmup_s: float
    duration_s: float

    requests: Count
    """Due inside the window."""
    ok: Count
    failed: Count
    errors: dict[str, Count] = {}
    """By kind."""
    error_samples: list[str] = []
    requests_per_s: float
    """Answers that ended inside the window, by its length."""
    output_tokens_per_s: float
    """Tokens that came inside the window, by its length."""
    output_tokens_by: Literal["usage", "events"]
    """Whether the server counted the tokens, or events with text were counted in their place."""

    ttft_ms: Percentiles
    """From when the request was due: what a user waits."""
    latency_ms: Percentiles
    service_ttft_ms: Percentiles
    """From when the request was sent: what the server takes. The same as above in a closed loop."""
    service_latency_ms: Percentiles
    itl_ms: Percentiles
    """Between one event with text and the next of the same answer."""
    start_lag_ms: Percentiles
    """From when a request was due to when it was sent: the generator's own delay, and its queue."""
    loop_lag_ms: Percentiles
    """How late the generator's timers fired: its own share in every figure above."""

    in_flight_max: Count
    waiting_max: Count | None = None
    """Open loop: most requests that were due and not sent, because --max-in-flight was reached."""
    backlog_at_start: Count | None = None
    """Open loop: due and not answered when the window began."""
    backlog: Count | None = None
    """The same when it ended. More than at the start: the server was too slow for the rate."""
    reuse_requests: Count = 0
    distinct_recipients: Count = 0
    donors_served: Count = 0
    """Before the point; not counted."""
    prompt_tokens: Count | None = None
    """The server's count over the answers that tell it."""
    engine_cached_tokens: Count | None = None
    """The server's count of prompt tokens it did not compute, whatever cache they came from. No semantic evidence."""
    stopped: str | None = None
    """Why the point ended early; its figures then stand for what came before."""

    @property
    def level(self) -> float:
        """What the curve is drawn over."""
        return float(self.concurrency or 0) if self.mode == "closed" else float(self.rate or 0.0)


def _quantile(ordered: list[float], share: float) -> float:
    """Linear between the two neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
