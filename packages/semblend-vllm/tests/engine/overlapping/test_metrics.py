"""What the scheduler's half tells of comparisons reaches vLLM's metrics, whole and once."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from semblend_core import ProviderStats, QualityNews
from semblend_vllm.compat.metrics import ReusePrometheus, ReuseStats

LABELS = {"model_name": "m", "engine": "0"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> ReusePrometheus:
    def made(kind: Any) -> Any:
        return lambda **options: kind(**options, registry=registry)

    kinds = (prometheus_client.Counter, prometheus_client.Gauge, prometheus_client.Histogram)
    config = SimpleNamespace(kv_transfer_config=None)
    return ReusePrometheus(config, {kind: made(kind) for kind in kinds}, list(LABELS), {0: list(LABELS.values())})


def told(news: QualityNews) -> ReuseStats:
    return ReuseStats.between(ProviderStats(), ProviderStats(), news.take())


def test_comparisons_are_in_vllms_metrics(metrics: ReusePrometheus, registry: CollectorRegistry) -> None:
    news = QualityNews("balanced", {"one_place": 1.0, "few_places": 2.0})
    news.compared("few_places", 0.95, 0.02)
    news.count("compared")
    first = told(news)
    news.compared("few_places", 1.0, None)
    news.count("compared")
    both = pickle.loads(pickle.dumps(first.aggregate(told(news))))
    assert not both.is_empty()
    assert both.reduce()["semblend comparisons compared"] == 2
    metrics.observe(both.data)
    of_kind = {**LABELS, "tier": "balanced", "kind": "few_places"}
    assert registry.get_sample_value("semblend_quality_agreement_count", of_kind) == 2
    assert registry.get_sample_value("semblend_quality_agreement_sum", of_kind) == 1.95
    assert registry.get_sample_value("semblend_quality_kl_count", of_kind) == 1
    assert registry.get_sample_value("semblend_comparisons_total", {**LABELS, "result": "compared"}) == 2
    assert registry.get_sample_value("semblend_quality_spending", {**LABELS, "kind": "few_places"}) == 2


def test_without_news_nothing_is_sent() -> None:
    news = QualityNews("balanced", {"one_place": 1.0})
    assert not told(news).is_empty(), "what is spent at first is told"
    assert told(news).is_empty()


def test_an_interval_without_comparisons_changes_nothing(metrics: ReusePrometheus, registry: CollectorRegistry) -> None:
    metrics.observe(ReuseStats.between(ProviderStats(), ProviderStats(lookups=1)).data)
    assert registry.get_sample_value("semblend_lookups_total", LABELS) == 1
