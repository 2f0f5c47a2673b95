"""Prometheus metrics, read from the provider at scrape time. Needs ``pip install semblend-core[metrics]``.

Nothing here runs while a request is served: a scrape asks the provider for its counters.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping

from semblend_core.contract import DeclineReason, OutcomeKind, ProviderStats
from semblend_core.telemetry.audit_counters import AuditCounters
from semblend_core.telemetry.counters import LatencyHistogram, LatencySnapshot

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"SemBlend's Prometheus metrics need {missing.name}: pip install semblend-core[metrics]",
        name=missing.name,
    ) from missing

logger = logging.getLogger(__name__)


class SemblendCollector(Collector):
    """Exposes one provider: ``REGISTRY.register(SemblendCollector(provider.stats))``, once per process.

    ``stats`` and ``audit`` are called once per scrape, on the scraping thread. If one raises, its metrics are
    missing from that scrape and ``semblend_scrape_errors_total`` rises; the engine's own still appear.
    ``labels`` are put on every series, such as ``{"engine": "vllm"}``.
    """

    def __init__(
        self,
        stats: Callable[[], ProviderStats],
        *,
        audit: Callable[[], AuditCounters] | None = None,
        lookup_seconds: LatencyHistogram | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._stats = stats
        self._audit = audit
        self._lookup_seconds = lookup_seconds
        self._labels = dict(labels or {})
        self._lock = threading.Lock()
        self._errors = 0

    def describe(self) -> Iterator[Metric]:
        """The names alone, so that registering does not ask the provider."""
        yield from self._provider_metrics(ProviderStats())
        yield from self._audit_metrics(AuditCounters())
        yield self._latency_metric(LatencyHistogram().snapshot())
        yield self._errors_metric()

    def collect(self) -> Iterator[Metric]:
        yield from self._guarded(lambda: self._provider_metrics(self._stats()))
        if (audit := self._audit) is not None:
            yield from self._guarded(lambda: self._audit_metrics(audit()))
        if self._lookup_seconds is not None:
            yield self._latency_metric(self._lookup_seconds.snapshot())
        yield self._errors_metric()

    def _guarded(self, read: Callable[[], Iterator[Metric]]) -> list[Metric]:
        try:
            return list(read())
        except Exception:
            with self._lock:
                self._errors += 1
                first = self._errors == 1
            if first:
                logger.exception("SemBlend's counters could not be read; see semblend_scrape_errors_total")
            return []

    def _provider_metrics(self, stats: ProviderStats) -> Iterator[Metric]:
        yield self._counter("lookups", "Lookups made.", stats.lookups)
        yield self._counter("plans", "Lookups that ended in a plan: a finding, not reuse.", stats.plans)
        yield self._counter_by(
            "declines",
            "Requests declined and donors refused, by reason.",
            "reason",
            {reason.value: stats.declines.get(reason, 0) for reason in DeclineReason},
        )
        yield self._counter_by(
            "outcomes",
            "Requests ended, by what the backend confirmed.",
            "kind",
            {kind.value: stats.outcomes.get(kind, 0) for kind in OutcomeKind},
        )
        yield self._counter(
            "confirmed_tokens", "Tokens whose relocated KV the backend confirmed.", stats.confirmed_tokens
        )
        yield self._counter("evicted_donors", "Donors dropped to keep a budget.", stats.evicted_donors)
        yield self._gauge("donors", "Donors that can be found.", stats.donors)
        yield self._gauge("donor_bytes", "Host memory held for donors' tokens and index.", stats.donor_bytes)
        yield self._gauge(
            "pinned_requests",
            "Requests whose plan is out and whose outcome is not in.",
            stats.pinned_requests,
        )

    def _audit_metrics(self, audit: AuditCounters) -> Iterator[Metric]:
        yield self._counter("audit_records", "Audit records written.", audit.written)
        yield self._counter_by(
            "audit_dropped",
            "Audit records lost, by cause.",
            "cause",
            {
                "queue_full": audit.dropped_queue_full,
                "io_error": audit.dropped_io_error,
                "closed": audit.dropped_closed,
                "unencodable": audit.dropped_unencodable,
            },
        )
        yield self._gauge("audit_queued", "Audit records waiting for the disk.", audit.queued)

    def _latency_metric(self, latency: LatencySnapshot) -> Metric:
        metric = HistogramMetricFamily(
            "semblend_lookup_seconds", "Time spent in a lookup.", labels=tuple(self._labels), unit="seconds"
        )
        bounds = [*(repr(bound) for bound in latency.bounds), "+Inf"]
        metric.add_metric(tuple(self._labels.values()), list(zip(bounds, latency.cumulative, strict=True)), latency.sum)
        return metric

    def _errors_metric(self) -> Metric:
        with self._lock:
            return self._counter("scrape_errors", "Scrapes in which counters could not be read.", self._errors)

    def _counter(self, name: str, doc: str, value: int) -> Metric:
        metric = CounterMetricFamily(f"semblend_{name}", doc, labels=tuple(self._labels))
        metric.add_metric(tuple(self._labels.values()), value)
        return metric

    def _counter_by(self, name: str, doc: str, label: str, values: Mapping[str, int]) -> Metric:
        # Every label value is there from the start, at 0, so that a rate sees the first increment.
        metric = CounterMetricFamily(f"semblend_{name}", doc, labels=(*self._labels, label))
        for value, count in values.items():
            metric.add_metric((*self._labels.values(), value), count)
        return metric

    def _gauge(self, name: str, doc: str, value: int) -> Metric:
        metric = GaugeMetricFamily(f"semblend_{name}", doc, labels=tuple(self._labels))
        metric.add_metric(tuple(self._labels.values()), value)
        return metric
