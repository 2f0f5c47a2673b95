"""Placement is what routing said; ids and tenant reach the engine in the form that it reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sembench.results.routes import SEMANTIC_RULES


def parts(rate):
    return (rate.numerator, rate.denominator)


def of_donor(seen) -> bool:
    return "-donor" in seen.headers["x-request-id"]


def item_number(seen) -> int:
    return int(seen.headers["x-request-id"].split("-")[2], 16)


@pytest.mark.parametrize("header", ["x-semblend-routing-path", "x-gateway-route", "x-route"])
def test_requests_that_a_router_placed_semantically_are_counted(stub, gateway_run, read_result, header):
    paths = ("semantic", "Semantic_locality", "round_robin", "semantic_fallback")
    stub.route = lambda seen: {header: paths[item_number(seen) % 4]}
    gateway_run(items=4)
    assert parts(read_result().aggregate.semantic_placement_rate_by_request) == (2, 4)


NOT_PLACED = "no_match rejected timeout error disabled unavailable skipped below_threshold off miss cold router"


def test_rules_that_say_that_nothing_was_placed_do_not_count(stub, gateway_run, read_result):
    rules = [f"semantic{mark}{word}" for mark in "_-" for word in NOT_PLACED.split()]
    stub.route = lambda seen: {"x-route": rules[item_number(seen) % len(rules)]}
    gateway_run(items=len(rules))
    assert parts(read_result().aggregate.semantic_placement_rate_by_request) == (0, len(rules))


def test_every_rule_that_counts_is_documented():
    page = Path(__file__).parents[4] / "docs" / "METRICS.md"
    if not page.exists():
        pytest.skip("the pages are not part of the package")
    assert set(re.findall(r"`(semantic(?:_[a-z]+)?)`", page.read_text(encoding="utf-8"))) >= SEMANTIC_RULES


@pytest.mark.parametrize("header", ["x-semblend-routing-worker", "X-SemBlend-Replica", "x-smg-routed-worker-id"])
def test_where_a_router_names_workers_only_a_request_must_have_gone_to_its_donors(
    stub, gateway_run, read_result, header
):
    """Item 0 goes where its donor went, item 1 does not."""
    stub.route = lambda seen: {header: "w0" if item_number(seen) == 0 or of_donor(seen) else "w1"}
    gateway_run(items=2)
    result = read_result()
    assert parts(result.aggregate.semantic_placement_rate_by_request) == (1, 2)
    assert [record.donor_workers for record in result.requests] == [["w0"], ["w0"]]


def test_dynamo_is_asked_for_its_worker_and_believed(stub, gateway_run, read_result):
    stub.owner = "nvidia"
    stub.worker = lambda seen: {
        "prefill_worker_id": 7 if item_number(seen) == 0 or of_donor(seen) else 8,
        "decode_worker_id": 9,
    }
    gateway_run(items=2)
    result = read_result()
    assert [record.route["worker_id"] for record in result.requests] == ["7", "8"]
    assert parts(result.aggregate.semantic_placement_rate_by_request) == (1, 2)


def test_controls_that_were_placed_are_counted_too(stub, gateway_run, read_result):
    stub.route = lambda seen: {"x-route": "semantic"}
    gateway_run(items=2, transform="negative_control")
    assert parts(read_result().aggregate.negative_control_semantic_placement_rate) == (2, 2)


def test_without_a_choice_there_is_no_placement(stub, gateway_run, read_result):
    gateway_run(items=2)
    assert read_result().aggregate.semantic_placement_rate_by_request is None, "nobody tells of routes"
    stub.route = lambda seen: {"x-smg-routed-worker-id": "w0"}
    gateway_run("--overwrite", items=2)
    assert read_result().aggregate.semantic_placement_rate_by_request is None, "one worker is no choice"


def test_the_tenant_is_the_salt_of_donors_and_recipients_alike(stub, gateway_run):
    gateway_run("--tenant", "acme", items=2)
    assert {seen.body["cache_salt"] for seen in stub.served} == {"acme"}
    assert {seen.headers["x-tenant-id"] for seen in stub.served} == {"acme"}


def test_a_control_shares_a_salt_with_its_own_donor_only(stub, gateway_run):
    """Other items may hold its document."""
    gateway_run("--tenant", "acme", items=2, transform="negative_control")
    salts = [seen.body["cache_salt"] for seen in stub.served]
    assert salts[0] == salts[1] != salts[2] == salts[3]
    assert all(salt.startswith("acme-") for salt in salts)


@pytest.mark.parametrize(("tenant", "refuses"), [("", False), ("acme", True)])
def test_no_salt_is_sent_without_a_tenant_nor_to_a_server_that_refuses_it(stub, gateway_run, tenant, refuses):
    stub.refuses_salts = refuses
    assert gateway_run("--tenant", tenant, items=1).exit_code == 0
    assert all("cache_salt" not in seen.body for seen in stub.served)


@pytest.mark.parametrize(("owner", "named"), [("sglang", True), ("vllm", False)])
def test_sglang_is_given_the_id_in_the_body_where_it_reads_it(stub, gateway_run, owner, named):
    stub.owner = owner
    gateway_run(items=1)
    assert all(("rid" in seen.body) is named for seen in stub.served)
    assert not named or all(seen.body["rid"] == seen.headers["x-request-id"] for seen in stub.served)


def test_the_semantic_routers_own_word_decides_over_the_names_of_routes(stub, gateway_run, read_result):
    """A route may be called semantic because such a router stands behind it."""
    stub.route = lambda seen: {
        "x-route": "semantic-pool",
        "x-semblend-routing-path": "round_robin" if item_number(seen) else "semantic_locality",
    }
    gateway_run(items=2)
    assert parts(read_result().aggregate.semantic_placement_rate_by_request) == (1, 2)
