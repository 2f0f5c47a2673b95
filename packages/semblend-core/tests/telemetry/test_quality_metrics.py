"""What the guard found, as an engine exports it."""

from __future__ import annotations

from typing import Any

import pytest

from semblend_core import QualityMetrics, QualityNews

prometheus = pytest.importorskip("prometheus_client", reason="the engines bring it")


def metrics(registry: Any, *labels: str) -> QualityMetrics:
    return QualityMetrics(
        lambda name, says, names: prometheus.Counter(name, says, names, registry=registry),
        lambda name, says, names: prometheus.Gauge(name, says, names, registry=registry),
        lambda name, says, names, buckets: prometheus.Histogram(name, says, names, buckets=buckets, registry=registry),
        labels,
    )


def test_comparisons_become_histograms_counters_and_gauges() -> None:
    registry, news = prometheus.CollectorRegistry(), QualityNews("balanced", {"one_place": 1.0})
    news.compared("one_place", 0.97, 0.004)
    news.compared("one_place", 1.0, None)
    news.count("compared")
    news.count("compared")
    news.count("evicted")
    news.spends({"one_place": 2.0})
    taken = news.take()
    assert taken is not None
    metrics(registry, "engine").add(taken, ["0"])
    labels = {"engine": "0", "tier": "balanced", "kind": "one_place"}
    assert registry.get_sample_value("semblend_quality_agreement_count", labels) == 2
    assert registry.get_sample_value("semblend_quality_agreement_bucket", {**labels, "le": "0.97"}) == 1
    assert registry.get_sample_value("semblend_quality_kl_count", labels) == 1
    assert registry.get_sample_value("semblend_comparisons_total", {"engine": "0", "result": "evicted"}) == 1
    assert registry.get_sample_value("semblend_quality_spending", {"engine": "0", "kind": "one_place"}) == 2


def test_news_of_two_intervals_join() -> None:
    news = QualityNews("fast", {"one_place": 1.0})
    news.count("compared")
    first = news.take()
    news.compared("one_place", 1.0, None)
    news.count("compared")
    news.spends({"one_place": 4.0})
    both = QualityNews.joined(first, news.take())
    assert both == {
        "compared": [("fast", "one_place", 1.0, None)],
        "results": {"compared": 2},
        "spending": {"one_place": 4.0},
    }
    assert QualityNews.joined(None, both) == QualityNews.joined(both, None) == both


def test_nothing_is_told_twice() -> None:
    news = QualityNews("fast", {"one_place": 1.0})
    assert news.take() is not None, "what is spent at first is told"
    assert news.take() is None
