"""Counters before and after: deltas, resets, rates, and endpoints that do not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import Result
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from sembench.prometheus import EngineSnapshot, EngineWindow, compare_snapshots, parse_metrics, take_snapshot
from sembench.schema import InputError, read_json
from semblend_core import (
    ENGINE_COUNTERS,
    ENGINE_GAUGES,
    ENGINE_LABELLED_COUNTERS,
    DonorOffer,
    LookupRequest,
    Namespace,
    Outcome,
    OutcomeKind,
    ProviderStats,
    SemanticLookupProvider,
    Settings,
    TokenIds,
    as_token_ids,
    create_provider,
)

Run = Callable[..., Result]
NAMESPACE = Namespace(
    model="m",
    revision="1",
    tokenizer="t",
    dtype="none",
    kv_layout="none",
    block_size=16,
    adapter=None,
    salt="s",
)


class Endpoint:
    """A real HTTP server whose answer the test chooses."""

    def __init__(self) -> None:
        self.body, self.status = b"", 200
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(endpoint.status)
                self.end_headers()
                self.wfile.write(endpoint.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever, args=(0.02,))
    thread.start()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()
    thread.join()


def snapshot(text: str, time: float = 0.0, url: str = "http://x/metrics") -> EngineSnapshot:
    return EngineSnapshot(url=url, taken_at="2026-01-01T00:00:00+00:00", time=time, samples=parse_metrics(text, "text"))


def window(before: str, after: str) -> EngineWindow:
    return compare_snapshots(snapshot(before), snapshot(after, time=10.0))


def vllm(queries: int, hits: int, computed: int, transferred: int, engine: int = 0) -> str:
    labels = f'engine="{engine}",model_name="m"'
    return (
        "# TYPE vllm:external_prefix_cache_queries counter\n"
        f"vllm:external_prefix_cache_queries_total{{{labels}}} {queries}\n"
        "# TYPE vllm:external_prefix_cache_hits counter\n"
        f"vllm:external_prefix_cache_hits_total{{{labels}}} {hits}\n"
        "# TYPE vllm:prompt_tokens_by_source counter\n"
        f'vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}} {computed}\n'
        f'vllm:prompt_tokens_by_source_total{{{labels},source="external_kv_transfer"}} {transferred}\n'
    )


def test_rates_are_of_the_window_and_not_of_the_life_of_the_server() -> None:
    told = window(vllm(1000, 900, 100, 900), vllm(1200, 950, 250, 950))
    rate = told.rates["vllm_external_prefix_cache_hit_rate"]
    assert (rate.numerator, rate.denominator, rate.value) == (50, 200, 0.25)
    share = told.rates["vllm_prompt_tokens_from_external_kv_transfer"]
    assert (share.numerator, share.denominator) == (50, 200)
    assert told.totals["vllm:prompt_tokens_by_source{source=local_compute}"] == 150
    assert any("no proof of reuse" in remark for remark in told.remarks)


def test_a_counter_that_fell_was_reset_and_its_rates_are_null() -> None:
    told = window(vllm(1000, 900, 100, 900), vllm(1200, 50, 250, 950))
    assert told.resets == ['vllm:external_prefix_cache_hits_total{engine="0",model_name="m"}']
    assert told.rates["vllm_external_prefix_cache_hit_rate"].value is None
    assert told.rates["vllm_external_prefix_cache_hit_rate"].denominator == 200
    assert told.rates["vllm_prompt_tokens_from_local_compute"].value == 0.75


def test_a_new_process_resets_even_counters_that_have_overtaken_the_old_ones() -> None:
    start = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {}\n"
    told = window(vllm(10, 5, 5, 5) + start.format(100), vllm(1000, 900, 100, 900) + start.format(200))
    assert told.rates["vllm_external_prefix_cache_hit_rate"].value is None
    assert "started anew" in told.remarks[0]


def test_several_engines_are_added_up_and_a_new_series_counts_from_0() -> None:
    told = window(vllm(100, 10, 90, 10), vllm(200, 60, 140, 60) + vllm(40, 30, 10, 30, engine=1))
    rate = told.rates["vllm_external_prefix_cache_hit_rate"]
    assert (rate.numerator, rate.denominator) == (80, 140)


def test_nothing_asked_is_no_rate_rather_than_0() -> None:
    told = window(vllm(100, 10, 90, 10), vllm(100, 10, 90, 10))
    rate = told.rates["vllm_external_prefix_cache_hit_rate"]
    assert (rate.value, rate.numerator, rate.denominator) == (None, 0, 0)


def test_a_family_that_is_not_exported_has_no_rate() -> None:
    assert window("other_total 1\n", "other_total 5\n").rates == {}


def served(provider: SemanticLookupProvider, request_id: str, tokens: TokenIds, kind: OutcomeKind) -> None:
    """One request of an engine: looked up, then ended as ``kind``."""
    found = provider.lookup(LookupRequest(request_id, NAMESPACE, tokens))
    if kind is OutcomeKind.MATERIALIZED:
        assert found.plan is not None
        provider.report_outcome(Outcome(request_id, kind, confirmed_tokens=found.plan.reused_tokens))
    else:
        provider.report_outcome(Outcome(request_id, kind, reason=found.reason))


def exported(stats: ProviderStats) -> str:
    """The metrics that core declares, filled as adapters fill them and written by prometheus_client."""
    registry = CollectorRegistry()
    for field, (metric, says) in ENGINE_COUNTERS.items():
        Counter(metric, says, registry=registry).inc(getattr(stats, field))
    for field, (metric, says, label) in ENGINE_LABELLED_COUNTERS.items():
        labelled = Counter(metric, says, [label], registry=registry)
        for value, count in getattr(stats, field).items():
            labelled.labels(value).inc(count)
    for field, (metric, says) in ENGINE_GAUGES.items():
        Gauge(metric, says, registry=registry).set(getattr(stats, field))
    return generate_latest(registry).decode()


def test_outcomes_and_declines_of_a_provider_are_told_apart_as_adapters_export_them() -> None:
    known, unknown = (as_token_ids(range(start, start + 512)) for start in (0, 10_000))
    with closing(create_provider(Settings(lookup_budget_ms=60_000.0), engine="test")) as provider:
        provider.offer_donor(DonorOffer("donor", NAMESPACE, known))
        served(provider, "before", unknown, OutcomeKind.DECLINED)
        before = provider.stats()
        for number in range(3):
            served(provider, f"hit-{number}", as_token_ids([7, 7, 7, *known]), OutcomeKind.MATERIALIZED)
        served(provider, "miss", unknown, OutcomeKind.DECLINED)
        after = provider.stats()
    told = window(exported(before), exported(after))
    assert told.totals["semblend_confirmed_tokens"] == after.confirmed_tokens > 0
    assert (told.rates["semblend_plan_rate"].numerator, told.rates["semblend_plan_rate"].denominator) == (3, 4)
    outcomes = {name: rate.numerator for name, rate in told.rates.items() if name.startswith("semblend_outcome_")}
    assert outcomes == {"semblend_outcome_materialized": 3, "semblend_outcome_declined": 1}
    assert told.totals["semblend_declines{reason=no_spans}"] == 1
    assert told.resets == []


def test_sglang_tokens_are_told_by_source() -> None:
    text = (
        'sglang:prompt_tokens_total{{m="x"}} {}\n'
        'sglang:cached_tokens_total{{m="x",cache_source="device"}} {}\n'
        'sglang:cached_tokens_total{{m="x",cache_source="host"}} {}\n'
    )
    told = window(text.format(100, 10, 0), text.format(300, 60, 50))
    rate = told.rates["sglang_cached_token_rate"]
    assert (rate.numerator, rate.denominator) == (100, 200)
    assert told.totals["sglang:cached_tokens{cache_source=host}"] == 50


def test_windows_of_two_servers_or_backwards_in_time_are_refused() -> None:
    with pytest.raises(InputError, match="same address"):
        compare_snapshots(snapshot("a_total 1\n"), snapshot("a_total 2\n", url="http://y/metrics"))
    with pytest.raises(InputError, match="swap"):
        compare_snapshots(snapshot("a_total 1\n", time=5.0), snapshot("a_total 2\n", time=4.0))


def test_the_commands_take_snapshots_and_compare_them(endpoint: Endpoint, sembench: Run, tmp_path: Path) -> None:
    before, after, output = tmp_path / "before.json", tmp_path / "after.json", tmp_path / "window.json"
    endpoint.body = vllm(1000, 900, 100, 900).encode()
    assert sembench("engine-snapshot", "--url", endpoint.url, "--output", before).exit_code == 0
    endpoint.body = vllm(1200, 50, 250, 950).encode()
    assert sembench("engine-snapshot", "--url", endpoint.url, "--output", after).exit_code == 0
    result = sembench("engine-window", "--before", before, "--after", after, "--output", output)
    assert result.exit_code == 0, result.output
    assert "vllm_external_prefix_cache_hit_rate: not known (not known / 200)" in result.stdout
    assert "reset in between" in result.stderr
    assert read_json(output, EngineWindow).rates["vllm_prompt_tokens_from_local_compute"].denominator == 200


def test_an_endpoint_that_refuses_ends_with_3(endpoint: Endpoint, sembench: Run, tmp_path: Path) -> None:
    output = tmp_path / "s.json"
    for status, body, told in (
        (404, b"", "status 404"),
        (200, b"<html>{}</html>", "not a Prometheus text exposition"),
        (200, b"", "holds no metrics"),
    ):
        endpoint.status, endpoint.body = status, body
        result = sembench("engine-snapshot", "--url", endpoint.url, "--output", output)
        assert (result.exit_code, told in result.stderr) == (3, True), result.stderr
    for url in ("nonsense", "http://127.0.0.1:1/metrics"):
        result = sembench("engine-snapshot", "--url", url, "--output", output, "--timeout", "2")
        assert result.exit_code == 3
        assert url in result.stderr
    assert not output.exists()


def test_a_snapshot_of_another_version_is_refused(sembench: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(snapshot("a_total 1\n").model_dump_json().replace("snapshot.v1", "snapshot.v9"))
    result = sembench("engine-window", "--before", path, "--after", path, "--output", tmp_path / "w.json")
    assert result.exit_code == 2
    assert "sembench.engine-snapshot.v9" in result.stderr


def test_values_that_are_no_numbers_are_null(endpoint: Endpoint) -> None:
    endpoint.body = b"a_total NaN\nb_total +Inf\nc_total 3\n"
    assert [sample.value for sample in take_snapshot(endpoint.url).samples] == [None, None, 3.0]
