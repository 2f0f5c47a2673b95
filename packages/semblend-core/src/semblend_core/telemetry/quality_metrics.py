"""What the live guard found, as the engines export it: histograms of agreement and KL, and what is done about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

QUALITY_HISTOGRAMS: Mapping[str, tuple[str, str, tuple[float, ...]]] = {
    "agreement": (
        "semblend_quality_agreement",
        "Share of an answer's positions whose likeliest token is the same with reuse as without.",
        (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 1.0),
    ),
    "kl": (
        "semblend_quality_kl",
        "Mean KL divergence over an answer's positions, of reuse from cold, in nats.",
        (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    ),
}
"""With their buckets. Each has the labels ``HISTOGRAM_LABELS``."""
HISTOGRAM_LABELS = ("tier", "kind")
COMPARISONS = ("semblend_comparisons", "Requests that were chosen to be compared, by what came of it.", "result")
SPENDING = (
    "semblend_quality_spending",
    "Recompute budget of a kind of plan, by its tier's own; 0: the kind is declined.",
    "kind",
)

News = dict[str, Any]
"""Plain lists and dictionaries, since engines send it between processes."""


class QualityNews:
    """Gathers what is not exported yet. Called on one thread."""

    def __init__(self, tier: str, spending: Mapping[str, float]) -> None:
        self._tier = tier
        self._compared: list[tuple[str, str, float, float | None]] = []
        self._results: Counter[str] = Counter()
        self._spending, self._moved = dict(spending), True

    def compared(self, kind: str, agreement: float, kl: float | None) -> None:
        self._compared.append((self._tier, kind, agreement, kl))

    def count(self, result: str) -> None:
        self._results[result] += 1

    def spends(self, spending: Mapping[str, float]) -> None:
        self._moved = self._moved or self._spending != spending
        self._spending = dict(spending)

    def take(self) -> News | None:
        """What happened since the last call; None: nothing."""
        if not (self._compared or self._results or self._moved):
            return None
        news = {"compared": self._compared, "results": dict(self._results), "spending": dict(self._spending)}
        self._compared, self._results, self._moved = [], Counter(), False
        return news

    @staticmethod
    def joined(earlier: News | None, later: News | None) -> News | None:
        """What was taken at two times as one."""
        if earlier is None or later is None:
            return earlier or later
        return {
            "compared": [*earlier["compared"], *later["compared"]],
            "results": dict(Counter(earlier["results"]) + Counter(later["results"])),
            "spending": later["spending"],
        }


class QualityMetrics:
    """The metrics themselves, made by the engine's own way to make them, with its labels in front of ours."""

    def __init__(
        self,
        counter: Callable[[str, str, list[str]], Any],
        gauge: Callable[[str, str, list[str]], Any],
        histogram: Callable[[str, str, list[str], tuple[float, ...]], Any],
        labels: Sequence[str] = (),
    ) -> None:
        name, says, label = COMPARISONS
        self._comparisons = counter(name, says, [*labels, label])
        name, says, label = SPENDING
        self._spending = gauge(name, says, [*labels, label])
        self._histograms = {
            figure: histogram(name, says, [*labels, *HISTOGRAM_LABELS], buckets)
            for figure, (name, says, buckets) in QUALITY_HISTOGRAMS.items()
        }

    def add(self, news: News, labels: Sequence[object] = ()) -> None:
        for tier, kind, agreement, kl in news["compared"]:
            self._histograms["agreement"].labels(*labels, tier, kind).observe(agreement)
            if kl is not None:
                self._histograms["kl"].labels(*labels, tier, kind).observe(kl)
        for result, count in news["results"].items():
            self._comparisons.labels(*labels, result).inc(count)
        for kind, spending in news["spending"].items():
            self._spending.labels(*labels, kind).set(spending)
