"""SemBlend's counters beside SGLang's own, at the same ``/metrics``.

SGLang's scheduler is another process than its server; both meet in prometheus_client's multiprocess folder, which only
real counters reach. So the provider's figures are added to such counters as they grow.
"""

from __future__ import annotations

from collections.abc import Callable

from semblend_core import (
    ENGINE_COUNTERS,
    ENGINE_GAUGES,
    ENGINE_LABELLED_COUNTERS,
    ENGINE_STATES,
    ProviderStats,
    QualityMetrics,
    QualityNews,
    growth_of,
)


class EngineMetrics:
    def __init__(self, stats: Callable[[], ProviderStats], quality: QualityNews) -> None:
        # Late: SGLang sets the folder's name before anything may import this.
        from prometheus_client import Counter, Gauge, Histogram

        self._stats, self._told, self._news = stats, ProviderStats(), quality
        self._quality = QualityMetrics(
            Counter,
            lambda name, says, labels: Gauge(name, says, labels, multiprocess_mode="livemin"),
            lambda name, says, labels, buckets: Histogram(name, says, labels, buckets=buckets),
        )
        self._counters = {name: Counter(metric, says) for name, (metric, says) in ENGINE_COUNTERS.items()}
        self._labelled = {
            name: Counter(metric, says, [label]) for name, (metric, says, label) in ENGINE_LABELLED_COUNTERS.items()
        }
        self._gauges = {
            name: Gauge(metric, says, multiprocess_mode="livesum") for name, (metric, says) in ENGINE_GAUGES.items()
        }
        self._states = {
            name: (Gauge(metric, says, [label], multiprocess_mode="livesum"), states)
            for name, (metric, says, label, states) in ENGINE_STATES.items()
        }

    def update(self) -> None:
        """Add what has happened since the last call."""
        now = self._stats()
        grown = growth_of(self._told, now)
        for name, counter in self._counters.items():
            counter.inc(grown[name])
        for name, labelled in self._labelled.items():
            for value, count in grown[name].items():
                labelled.labels(value).inc(count)
        for name, gauge in self._gauges.items():
            gauge.set(getattr(now, name))
        for name, (gauge, states) in self._states.items():
            for state in states:
                gauge.labels(str(state)).set(getattr(now, name) == state)
        self._told = now
        news = self._news.take()
        if news is not None:
            self._quality.add(news)
