"""Donors are sent for once, and only news of the present order count."""

from __future__ import annotations

from semblend_core import Namespace, Span
from semblend_core.serving import Claim, FetchOrders, RequestLife, StepWork

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="float32", kv_layout="nhd", block_size=16, adapter=None, salt="tenant"
)


def claimed(donor_id: str) -> RequestLife:
    return RequestLife(None, "r", NAMESPACE, [1] * 64, claim=Claim(0, 48, (Span(0, donor_id, 5, 48),), ()))


def sent(orders: FetchOrders) -> StepWork:
    work = StepWork()
    orders.put_into(work)
    return work


def test_they_are_there_when_every_rank_has_them() -> None:
    orders, life = FetchOrders(2), claimed("a")
    assert [orders.arrival(life) for _ in range(2)] == ["coming", "coming"]
    (order,) = sent(orders).fetches
    orders.arrived({order.number: frozenset([0])})
    assert orders.arrival(life) == "coming"
    orders.arrived({order.number: frozenset([1])})
    assert orders.arrival(life) == "there"
    assert sent(orders).fetches == []


def test_news_of_a_withdrawn_order_do_not_count_for_the_next_one() -> None:
    orders = FetchOrders(1)
    orders.arrival(claimed("a"))
    (first,) = sent(orders).fetches
    orders.end("r", wanted=False)
    assert orders.arrival(claimed("b")) == "coming"
    orders.arrived({first.number: frozenset([0])})
    assert orders.arrival(claimed("b")) == "coming"
    work = sent(orders)
    assert (work.unwanted, [order.spans[0].donor_id for order in work.fetches]) == (["r"], ["b"])
    orders.arrived({work.fetches[0].number: frozenset([0])})
    assert orders.arrival(claimed("b")) == "there"
