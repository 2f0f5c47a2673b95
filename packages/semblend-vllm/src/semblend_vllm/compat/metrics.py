"""SemBlend's counters in vLLM's own ``/metrics`` and log: what happened since vLLM last asked."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass
from typing import Any

import prometheus_client
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

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


@dataclass
class ReuseStats(KVConnectorStats):  # type: ignore[misc]
    """Plain numbers and dictionaries, since vLLM sends it between processes."""

    @classmethod
    def between(cls, before: ProviderStats, after: ProviderStats, quality: dict[str, Any] | None = None) -> ReuseStats:
        moved = any(getattr(after, name) != getattr(before, name) for name in (*ENGINE_GAUGES, *ENGINE_STATES))
        gauges = {name: getattr(after, name) for name in ENGINE_GAUGES}
        states = {name: str(getattr(after, name)) for name in ENGINE_STATES}
        return cls(growth_of(before, after) | gauges | states | {"gauges_moved": moved, "quality": quality})

    def aggregate(self, other: KVConnectorStats) -> ReuseStats:
        if not other.data:
            return self
        if not self.data:
            return ReuseStats(dict(other.data))
        summed: dict[str, Any] = {name: self.data[name] + other.data[name] for name in ENGINE_COUNTERS}
        for name in ENGINE_LABELLED_COUNTERS:
            summed[name] = dict(Tally(self.data[name]) + Tally(other.data[name]))
        summed["quality"] = QualityNews.joined(self.data["quality"], other.data["quality"])
        return ReuseStats(
            summed | {name: other.data[name] for name in (*ENGINE_GAUGES, *ENGINE_STATES, "gauges_moved")}
        )

    def reduce(self) -> dict[str, int | float]:
        """One line in vLLM's log per interval."""
        figures = {f"semblend {name.replace('_', ' ')}": self.data[name] for name in ENGINE_COUNTERS}
        for name in ENGINE_LABELLED_COUNTERS:
            figures |= {f"semblend {key}": count for key, count in self.data[name].items()}
        quality = self.data["quality"] or {"results": {}}
        figures |= {f"semblend comparisons {result}": count for result, count in quality["results"].items()}
        return figures

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def is_empty(self) -> bool:
        changing = (*ENGINE_COUNTERS, *ENGINE_LABELLED_COUNTERS, "gauges_moved", "quality")
        return not any(self.data.get(name) for name in changing)


class ReusePrometheus(KVConnectorPromMetrics):  # type: ignore[misc]
    """The same counters as vLLM exposes them, with its labels."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter, gauge = metric_types[prometheus_client.Counter], metric_types[prometheus_client.Gauge]
        self._counters = {
            name: counter(name=metric, documentation=says, labelnames=labelnames)
            for name, (metric, says) in ENGINE_COUNTERS.items()
        }
        self._labelled = {
            name: counter(name=metric, documentation=says, labelnames=[*labelnames, label])
            for name, (metric, says, label) in ENGINE_LABELLED_COUNTERS.items()
        }
        self._gauges = {
            name: gauge(name=metric, documentation=says, labelnames=labelnames)
            for name, (metric, says) in ENGINE_GAUGES.items()
        }
        self._states = {
            name: gauge(name=metric, documentation=says, labelnames=[*labelnames, label])
            for name, (metric, says, label, _) in ENGINE_STATES.items()
        }
        histogram = metric_types[prometheus_client.Histogram]
        self._quality = QualityMetrics(
            lambda name, says, names: counter(name=name, documentation=says, labelnames=names),
            lambda name, says, names: gauge(name=name, documentation=says, labelnames=names),
            lambda name, says, names, buckets: histogram(
                name=name, documentation=says, labelnames=names, buckets=buckets
            ),
            labelnames,
        )
        for labels in per_engine_labelvalues.values():
            self._show_states(labels, {name: str(getattr(ProviderStats(), name)) for name in ENGINE_STATES})

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, metric in self._counters.items():
            metric.labels(*labels).inc(transfer_stats_data[name])
        for name, metric in self._labelled.items():
            for value, count in transfer_stats_data[name].items():
                metric.labels(*labels, value).inc(count)
        for name, metric in self._gauges.items():
            metric.labels(*labels).set(transfer_stats_data[name])
        self._show_states(labels, transfer_stats_data)
        if transfer_stats_data["quality"] is not None:
            self._quality.add(transfer_stats_data["quality"], labels)

    def _show_states(self, labels: list[object], now: dict[str, Any]) -> None:
        for name, metric in self._states.items():
            for state in ENGINE_STATES[name][-1]:
                metric.labels(*labels, str(state)).set(now[name] == state)
