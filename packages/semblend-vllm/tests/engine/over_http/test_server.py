"""Over HTTP, as users run it: two processes, OpenAI's API, vLLM's own metrics and our audit stream."""

from __future__ import annotations

from typing import Any

import pytest

from semblend_core.testing import wait_until

TEXT = " ".join(f"Lot {n} is a chair of oak number {n * 17 % 90}, sold for {n * 3 % 40 + 5} crowns." for n in range(40))
DONOR = f"An auction.\n\n{TEXT}\n\nQuestion: which lot was cheapest?\nAnswer:"
RECIPIENT = f"System: reply with one number from the list.\n\n{TEXT}\n\nQuestion: how many lots?\nAnswer:"


def cached_tokens(answer: Any) -> int:
    return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def test_a_changed_instruction_is_reused_over_http(server: Any) -> None:
    cold = server.ask(RECIPIENT, cache_salt="http, cold", kv_transfer_params={"semblend": "off"})
    server.keep(DONOR)
    before = server.counter("semblend_confirmed_tokens_total")
    reused = server.reused(RECIPIENT)

    assert reused.text == cold["choices"][0]["text"]
    assert reused.confirmed_tokens > 0.7 * reused.prompt_tokens
    assert reused.cached_tokens == reused.confirmed_tokens
    assert server.counter("semblend_confirmed_tokens_total") - before == reused.confirmed_tokens
    assert server.counter("semblend_outcomes_total", outcome="materialized") >= 1
    assert server.counter("semblend_self_test", state="passed") == 1
    assert server.counter("semblend_self_test", state="pending") == 0
    # Registered, counted and written down one after the other, in the background.
    wait_until(lambda: server.counter("semblend_donors") == donors_on_record(server), "as many donors as are on record")


def donors_on_record(server: Any) -> int:
    return len(server.records("donor_registered")) - len(server.records("evicted"))


def test_the_same_prompt_without_reuse_finds_nothing(server: Any) -> None:
    probe = server.ask(RECIPIENT, kv_transfer_params={"semblend": "off"})
    assert cached_tokens(probe) == 0


@pytest.mark.parametrize("way", ["control", "control_over_http"])
def test_an_operator_purges_a_tenant_of_an_engine_that_has_nothing_to_do(server: Any, way: str) -> None:
    ask_operator = getattr(server, way)
    for salt in (f"purged by {way}", f"untouched by {way}"):
        server.keep(DONOR, cache_salt=salt)
    purged = ask_operator("purge", f"purged by {way}")
    scheduler, worker = purged["engines"].values()
    assert (scheduler["donors"], worker["stored"]) == (1, 1)
    assert worker["bytes"] > 0
    assert purged["verified"]
    scheduler, worker = ask_operator("show", f"untouched by {way}")["engines"].values()
    assert (scheduler["donors"], worker["stored"]) == (1, 1)
    assert scheduler["oldest_s"] > 0
    may_not_stay = {"semblend": {"capture": False}}
    assert cached_tokens(server.ask(RECIPIENT, cache_salt=f"purged by {way}", kv_transfer_params=may_not_stay)) == 0
    assert cached_tokens(server.ask(RECIPIENT, cache_salt=f"untouched by {way}")) > 0
