"""One point of a load curve: the published entry of a result's ``load``, and how it is made of answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sembench.load.answer import Answer
from sembench.load.watch import Watch
from sembench.schema.result import Count

_SAMPLES = 5


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


def measure_point(
    watch: Watch,
    *,
    concurrency: int | None,
    rate: float | None,
    reuse_share: float,
    warmup_s: float,
    donors_served: int,
) -> LoadPoint:
    counted = [answer for answer in watch.answers if watch.counts(answer.due)]
    good = [answer for answer in counted if answer.error is None]
    failed = [answer for answer in counted if answer.error is not None]
    # A point that had to stop is measured over the time it had.
    end = min(watch.window_end, watch.ended) if watch.stopped and watch.ended else watch.window_end
    length = max(0.0, end - watch.window_start)
    by, tokens = _tokens_between(watch.answers, watch.window_start, end)
    ended = sum(
        answer.error is None and answer.ended is not None and watch.window_start <= answer.ended < end
        for answer in watch.answers
    )
    return LoadPoint(
        mode="closed" if concurrency is not None else "open",
        concurrency=concurrency,
        rate=rate,
        reuse_share=reuse_share,
        warmup_s=warmup_s,
        duration_s=length,
        requests=len(counted),
        ok=len(good),
        failed=len(failed),
        errors=dict(sorted(Counter(answer.error or "" for answer in failed).items())),
        error_samples=list(dict.fromkeys(f"{answer.error}: {answer.detail}" for answer in failed))[:_SAMPLES],
        requests_per_s=ended / length if length else 0.0,
        output_tokens_per_s=tokens / length if length else 0.0,
        output_tokens_by=by,
        ttft_ms=_spread(answer.token_at[0] - answer.due for answer in good if answer.token_at),
        latency_ms=_spread(answer.ended - answer.due for answer in good if answer.ended),
        service_ttft_ms=_spread(answer.token_at[0] - answer.sent for answer in good if answer.token_at and answer.sent),
        service_latency_ms=_spread(answer.ended - answer.sent for answer in good if answer.ended and answer.sent),
        itl_ms=_spread(later - earlier for answer in good for earlier, later in pairwise(answer.token_at)),
        start_lag_ms=_spread(answer.sent - answer.due for answer in counted if answer.sent),
        loop_lag_ms=_spread(watch.lags),
        in_flight_max=watch.in_flight_max,
        waiting_max=None if rate is None else watch.waiting_max,
        backlog_at_start=watch.backlog_at_start,
        backlog=watch.backlog,
        reuse_requests=len(watch.items),
        distinct_recipients=len(set(watch.items)),
        donors_served=donors_served,
        prompt_tokens=_sum(answer.prompt_tokens for answer in good),
        engine_cached_tokens=_sum(answer.cached_tokens for answer in good),
        stopped=watch.stopped,
    )


def _tokens_between(answers: Sequence[Answer], start: float, end: float) -> tuple[Literal["usage", "events"], float]:
    """An event may bring several tokens: where the server counts them, each event stands for its share of them."""
    told = [answer for answer in answers if answer.error is None and answer.token_at]
    by_usage = bool(told) and all(answer.output_tokens is not None for answer in told)
    tokens = 0.0
    for answer in answers:
        inside = sum(start <= moment < end for moment in answer.token_at)
        counted = by_usage and answer.output_tokens is not None
        tokens += inside * (answer.output_tokens or 0) / len(answer.token_at) if counted and inside else inside
    return "usage" if by_usage else "events", tokens


def _spread(seconds: Iterable[float]) -> Percentiles:
    return Percentiles.of(1000 * value for value in seconds)


def _sum(counts: Iterable[int | None]) -> int | None:
    told = [value for value in counts if value is not None]
    return sum(told) if told else None
