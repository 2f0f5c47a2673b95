"""SemBlend's counters beside SGLang's own, at the same ``/metrics``.

SGLang's scheduler is another process than its server; both meet in prometheus_client's multiprocess folder, which only
real counters reach. So the provider's figures are added to such counters as they grow.
"""

from __future__ import annotations

from typing import Any

from semblend_core import ProviderStats, SemanticLookupProvider

COUNTERS = {
    "lookups": ("semblend_lookups", "Requests that were looked up."),
    "plans": ("semblend_plans", "Lookups that ended in a plan: a finding, not reuse."),
    "confirmed_tokens": ("semblend_confirmed_tokens", "Tokens of relocated KV that landed and were used."),
    "evicted_donors": ("semblend_evicted_donors", "Donors that are gone."),
}
LABELLED = {
    "outcomes": ("semblend_outcomes", "Requests by how they ended.", "outcome"),
    "declines": ("semblend_declines", "Requests and donors that were declined, by reason.", "reason"),
}
GAUGES = {"donors": ("semblend_donors", "Donors that can be found.")}


class EngineMetrics:
    def __init__(self, provider: SemanticLookupProvider) -> None:
        # Late: SGLang sets the folder's name before anything may import this.
        from prometheus_client import Counter, Gauge

        self._provider, self._told = provider, ProviderStats()
        self._counters = {name: Counter(metric, says) for name, (metric, says) in COUNTERS.items()}
        self._labelled = {name: Counter(metric, says, [label]) for name, (metric, says, label) in LABELLED.items()}
        self._gauges = {
            name: Gauge(metric, says, multiprocess_mode="livesum") for name, (metric, says) in GAUGES.items()
        }

    def update(self) -> None:
        """Add what has happened since the last call."""
        before, now = self._told, self._provider.stats()
        for name, counter in self._counters.items():
            counter.inc(max(0, getattr(now, name) - getattr(before, name)))
        for name, labelled in self._labelled.items():
            for value, count in _growth(getattr(before, name), getattr(now, name)):
                labelled.labels(value).inc(count)
        for name, gauge in self._gauges.items():
            gauge.set(getattr(now, name))
        self._told = now


def _growth(before: Any, now: Any) -> list[tuple[str, int]]:
    """A provider that counts backwards is not followed: counters only grow."""
    return [(str(key), count - before.get(key, 0)) for key, count in now.items() if count > before.get(key, 0)]
