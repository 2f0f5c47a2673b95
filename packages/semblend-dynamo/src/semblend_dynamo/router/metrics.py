"""What Prometheus is told. Labels are names of replicas, paths and reasons: few, and none of them a client's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from semblend_dynamo.router.replicas import Replica

_FAST = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.03, 0.1, 0.3, 1.0)
_SLOW = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class RouterMetrics:
    def __init__(self, replicas: Callable[[], Sequence[Replica]], gauges: dict[str, Callable[[], float]]) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests ended, by the status that the client got.", "status")
        self.placements = self._counter(
            "placements", "Requests that a replica answered, by the rule and the reason.", "replica", "path", "reason"
        )
        self.off_target = self._counter("off_target", "Requests that another replica answered than was chosen.")
        self.retries = self._counter("retries", "Attempts that another followed, by what failed.", "failure")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens, as engines counted them.", "path")
        self.cached_tokens = self._counter(
            "cached_tokens", "Of these: from the engine's cache, exact and relocated together.", "path"
        )
        self.broke_off = self._counter("broke_off", "Answers that a replica broke off after they had begun.")
        self.left = self._counter("clients_left", "Clients that went before their answer was whole.")
        self.deciding = self._histogram("deciding_seconds", "Reading a prompt and choosing its replica.", _FAST)
        self.first_byte = self._histogram("first_byte_seconds", "From a request's head to its first byte.", _SLOW)
        self.registry.register(_FleetCollector(replicas, gauges))

    def page(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"semblend_router_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"semblend_router_{name}", text, buckets=buckets, registry=self.registry)


class _FleetCollector(Collector):
    """Read when Prometheus asks, so that nothing is kept twice."""

    def __init__(self, replicas: Callable[[], Sequence[Replica]], gauges: dict[str, Callable[[], float]]) -> None:
        self._replicas = replicas
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("semblend_router_replica_up", "Whether it is asked now.", labels=["replica"])
        load = GaugeMetricFamily("semblend_router_replica_in_flight", "Requests under way.", labels=["replica"])
        failures = CounterMetricFamily(
            "semblend_router_replica_failures", "Attempts without an answer.", labels=["replica", "failure"]
        )
        for replica in self._replicas():
            up.add_metric([replica.name], float(replica.available))
            load.add_metric([replica.name], replica.in_flight)
            for failure, count in replica.failures.items():
                failures.add_metric([replica.name, failure], count)
        yield from (up, load, failures)
        for name, value in self._gauges.items():
            yield GaugeMetricFamily(f"semblend_router_{name}", name.replace("_", " "), value=value())
