"""From answers to the figures of one point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from sembench.load.answer import Answer
from sembench.load.point import LoadPoint, Percentiles
from sembench.load.watch import Watch

_SAMPLES = 5


def point_of(
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
