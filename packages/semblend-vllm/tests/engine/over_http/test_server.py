"""Over HTTP, as users run it: two processes, OpenAI's API, vLLM's own metrics and our audit stream."""

from __future__ import annotations

from typing import Any

TEXT = " ".join(f"Lot {n} is a chair of oak number {n * 17 % 90}, sold for {n * 3 % 40 + 5} crowns." for n in range(40))
DONOR = f"An auction.\n\n{TEXT}\n\nQuestion: which lot was cheapest?\nAnswer:"
RECIPIENT = f"System: reply with one number from the list.\n\n{TEXT}\n\nQuestion: how many lots?\nAnswer:"


def cached_tokens(answer: Any) -> int:
    return int((answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def test_a_changed_instruction_is_reused_over_http(server: Any) -> None:
    cold = server.ask(RECIPIENT, cache_salt="http, cold", kv_transfer_params={"semblend": "off"})
    server.keep(DONOR)
    before = server.counter("semblend_confirmed_tokens_total")
    reused = server.ask(RECIPIENT)

    assert reused["choices"][0]["text"] == cold["choices"][0]["text"]
    confirmed = server.counter("semblend_confirmed_tokens_total") - before
    assert confirmed > 0.7 * reused["usage"]["prompt_tokens"]
    assert cached_tokens(reused) == confirmed
    assert server.records("materialized")[-1]["tokens"] == confirmed
    assert server.counter("semblend_outcomes_total", outcome="materialized") >= 1
    assert server.counter("semblend_self_test", state="passed") == 1
    assert server.counter("semblend_self_test", state="pending") == 0
    assert server.counter("semblend_donors") == len(server.records("donor_registered")) - len(server.records("evicted"))


def test_the_same_prompt_without_reuse_finds_nothing(server: Any) -> None:
    probe = server.ask(RECIPIENT, kv_transfer_params={"semblend": "off"})
    assert cached_tokens(probe) == 0
