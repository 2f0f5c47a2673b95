"""Prometheus metrics, as a scraper sees them: over HTTP, from prometheus_client's own server."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semblend_core.contract import DeclineReason, LookupResult, Outcome, OutcomeKind, ProviderStats
from semblend_core.telemetry import AuditLog, LatencyHistogram, LoadAdvertised, ProviderCounters

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from semblend_core.telemetry.prometheus import SemblendCollector  # noqa: E402

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
Scrape = Callable[[SemblendCollector], Samples]


@pytest.fixture
def scrape() -> Iterator[Scrape]:
    """Serve one collector and scrape it; each further call scrapes the same server again."""
    registry = prometheus_client.CollectorRegistry()
    server, thread = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=registry)
    known: list[SemblendCollector] = []

    def once(collector: SemblendCollector) -> Samples:
        if collector not in known:
            registry.register(collector)
            known.append(collector)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    yield once
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_scrape_reads_the_counters_as_they_are_then(scrape: Scrape) -> None:
    counters = ProviderCounters()
    collector = SemblendCollector(lambda: counters.snapshot(donors=3, donor_bytes=4096, pinned_requests=1))
    first = scrape(collector)
    assert first["semblend_lookups_total", ()] == 0
    counters.count_lookup(LookupResult(None, DeclineReason.NO_DONORS))
    counters.count_outcome(Outcome("q", OutcomeKind.DECLINED, reason=DeclineReason.NO_DONORS))
    counters.count_outcome(Outcome("r", OutcomeKind.MATERIALIZED, confirmed_tokens=512))
    counters.count_evictions(2)
    second = scrape(collector)
    assert second["semblend_lookups_total", ()] == 1
    assert second["semblend_plans_total", ()] == 0
    assert second["semblend_declines_total", (("reason", "no_donors"),)] == 1
    assert second["semblend_outcomes_total", (("kind", "materialized"),)] == 1
    assert second["semblend_confirmed_tokens_total", ()] == 512
    assert second["semblend_evicted_donors_total", ()] == 2
    assert second["semblend_donors", ()] == 3
    assert second["semblend_donor_bytes", ()] == 4096
    assert second["semblend_pinned_requests", ()] == 1


def test_every_reason_and_kind_is_there_before_it_happens(scrape: Scrape) -> None:
    samples = scrape(SemblendCollector(ProviderStats))
    for reason in DeclineReason:
        assert samples["semblend_declines_total", (("reason", reason.value),)] == 0
    for kind in OutcomeKind:
        assert samples["semblend_outcomes_total", (("kind", kind.value),)] == 0


def test_labels_are_on_every_series(scrape: Scrape) -> None:
    collector = SemblendCollector(
        ProviderStats, lookup_seconds=LatencyHistogram(), labels={"engine": "vllm", "rank": "0"}
    )
    samples = scrape(collector)
    assert samples["semblend_declines_total", (("engine", "vllm"), ("rank", "0"), ("reason", "disabled"))] == 0
    assert all({"engine", "rank"} <= {name for name, _ in labels} for _, labels in samples)


def test_lookup_latency_is_a_histogram_in_seconds(scrape: Scrape) -> None:
    latency = LatencyHistogram((0.001, 0.01))
    for seconds in (0.0005, 0.001, 0.005, 0.5):
        latency.observe(seconds)
    samples = scrape(SemblendCollector(ProviderStats, lookup_seconds=latency))
    buckets = {labels[0][1]: value for (name, labels), value in samples.items() if name.endswith("_bucket")}
    assert {float(bound): count for bound, count in buckets.items()} == {0.001: 2, 0.01: 3, float("inf"): 4}
    assert samples["semblend_lookup_seconds_count", ()] == 4
    assert samples["semblend_lookup_seconds_sum", ()] == pytest.approx(0.5065)


def test_audit_losses_are_visible(scrape: Scrape, tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "vllm")
    log.emit(LoadAdvertised(request_id="r"))
    assert log.close(60)
    log.emit(LoadAdvertised(request_id="r"))
    samples = scrape(SemblendCollector(ProviderStats, audit=log.counters))
    assert samples["semblend_audit_records_total", ()] == 1
    assert samples["semblend_audit_dropped_total", (("cause", "closed"),)] == 1
    assert samples["semblend_audit_dropped_total", (("cause", "io_error"),)] == 0
    assert samples["semblend_audit_queued", ()] == 0


def test_what_is_not_given_is_not_exposed(scrape: Scrape) -> None:
    names = {name for name, _ in scrape(SemblendCollector(ProviderStats))}
    assert not any(name.startswith(("semblend_audit", "semblend_lookup_seconds")) for name in names)


def test_a_provider_that_fails_does_not_take_the_scrape_down(scrape: Scrape) -> None:
    def broken() -> ProviderStats:
        raise RuntimeError("no counters today")

    collector = SemblendCollector(broken)
    assert scrape(collector) == {("semblend_scrape_errors_total", ()): 1}
    assert scrape(collector) == {("semblend_scrape_errors_total", ()): 2}


def test_registering_asks_the_provider_nothing_and_twice_is_refused() -> None:
    asked = threading.Event()

    def stats() -> ProviderStats:
        asked.set()
        return ProviderStats()

    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    registry.register(SemblendCollector(stats))
    assert not asked.is_set()
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(SemblendCollector(stats))


def test_without_the_extra_telemetry_works_and_the_metrics_name_the_fix() -> None:
    code = """
        import sys
        sys.modules["prometheus_client"] = None  # as if it were not installed
        import semblend_core.telemetry
        try:
            import semblend_core.telemetry.prometheus
        except ModuleNotFoundError as error:
            print(error)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=True
    )
    assert "pip install semblend-core[metrics]" in ran.stdout


PAGE = Path(__file__).resolve().parents[4] / "docs" / "telemetry.md"


@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="the docs are only in a checkout")
def test_the_telemetry_page_describes_every_metric() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for metric in SemblendCollector(ProviderStats).describe():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        assert f"| `{name}" in page, name
