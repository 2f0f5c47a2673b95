"""What a request asks for in its ``kv_transfer_params``, well formed or not, and whose donors it may find."""

from __future__ import annotations

from typing import Any

import pytest

from semblend_core.testing import wait_until

TEXT = " ".join(f"Tower {n} has {n * 19 % 71 + 5} steps and {n * 5 % 9 + 1} bells." for n in range(30))
DONOR = f"A survey.\n\n{TEXT}\n\nQuestion: which is the highest?\nAnswer:"
RECIPIENT = f"System: answer with one number, from the survey.\n\n{TEXT}\n\nQuestion: how many?\nAnswer:"
SHORT = "Name a colour of the sky."
NOT_UNDERSTOOD: list[Any] = [
    *(5, 2.5, None, True, [], ["on"], "sideways", "ON", "", {"mode": "sideways"}),
    *({"mode": 5}, {"mode": None}, {"mode": []}, {"mode": {"mode": "on"}}, {"mode": "on", "capture": "yes"}),
]
UNKNOWN = [{}, {"other": 1}, {"semblend": {}}, {"semblend": {"unknown": 1}}, {"semblend": "on", "other": [1]}]


@pytest.fixture(scope="module")
def cold(server: Any) -> str:
    return str(server.ask(SHORT, cache_salt="wishes", kv_transfer_params={"semblend": "off"})["choices"][0]["text"])


@pytest.mark.parametrize("wish", NOT_UNDERSTOOD, ids=str)
def test_what_is_not_understood_is_served_without_a_lookup(server: Any, cold: str, wish: Any) -> None:
    before = server.counter("semblend_lookups_total")
    answer = server.ask(SHORT, cache_salt="wishes", kv_transfer_params={"semblend": wish})
    assert answer["choices"][0]["text"] == cold
    assert server.counter("semblend_lookups_total") == before


@pytest.mark.parametrize("parameters", UNKNOWN, ids=str)
def test_what_is_not_ours_changes_nothing(server: Any, cold: str, parameters: Any) -> None:
    before = server.counter("semblend_lookups_total")
    answer = server.ask(SHORT, cache_salt="wishes", kv_transfer_params=parameters)
    assert answer["choices"][0]["text"] == cold
    assert server.counter("semblend_lookups_total") == before + 1


@pytest.mark.parametrize("parameters", [5, "semblend", ["semblend"]], ids=str)
def test_parameters_that_are_no_object_are_refused_by_vllm_itself(server: Any, cold: str, parameters: Any) -> None:
    body = {"model": server.model, "prompt": SHORT, "kv_transfer_params": parameters}
    assert server.client.post("/v1/completions", json=body).status_code in (400, 422)
    assert server.ask(SHORT, cache_salt="wishes")["choices"][0]["text"] == cold


@pytest.fixture(scope="module")
def kept(server: Any) -> None:
    server.keep(DONOR, cache_salt="tenant of the wishes")


@pytest.mark.usefixtures("kept")
class TestWithADonor:
    @pytest.mark.parametrize("salt", ["another tenant", "Tenant", "tenant ", None])
    def test_another_salt_finds_nothing(self, server: Any, salt: str | None) -> None:
        more = {"cache_salt": salt, "kv_transfer_params": {"semblend": {"capture": False}}}
        answer = server.reused(RECIPIENT, **more)
        assert (answer.cached_tokens, answer.confirmed_tokens, answer.declined) == (0, 0, ["no_donors"])

    def test_discovery_finds_and_loads_nothing(self, server: Any) -> None:
        before = server.counter("semblend_outcomes_total", outcome="discovery_only"), len(server.records("plan"))
        answer = server.reused(
            RECIPIENT, cache_salt="tenant of the wishes", kv_transfer_params={"semblend": "discovery"}
        )
        assert (answer.cached_tokens, answer.confirmed_tokens, answer.declined) == (0, 0, [])
        assert server.counter("semblend_outcomes_total", outcome="discovery_only") == before[0] + 1
        assert len(server.records("plan")) == before[1] + 1

    def test_off_is_not_looked_up_and_not_kept(self, server: Any) -> None:
        before = len(server.records("lookup")), len(server.records("donor_registered"))
        server.reused(f"{RECIPIENT} Say it.", cache_salt="tenant of the wishes", kv_transfer_params={"semblend": "off"})
        assert (len(server.records("lookup")), len(server.records("donor_registered"))) == before

    def test_every_outcome_leaves_its_records(self, server: Any) -> None:
        """In the order in which a request meets them; the last one says how it ended."""
        again = f"System: be brief.\n\n{TEXT}\n\nQuestion: how many towers?\nAnswer:"
        unlike = " ".join(f"Well {n} is {n * 23 % 59 + 2} feet deep." for n in range(20))
        assert self.records_of(server, again, last="materialized") == ["lookup", "plan", "materialized"]
        assert self.records_of(server, unlike, last="donor_registered") == ["lookup", "declined", "donor_registered"]
        assert self.records_of(server, unlike, last="lookup")[0] == "lookup"

    def records_of(self, server: Any, prompt: str, last: str) -> list[str]:
        names = ("lookup", "plan", "materialized", "declined", "donor_registered", "error")
        before = {name: len(server.records(name)) for name in names}
        server.reused(prompt, cache_salt="tenant of the wishes")
        wait_until(lambda: len(server.records(last)) > before[last], f"a record of {last}")
        new = [record for name in names for record in server.records(name)[before[name] :]]
        return [str(record["event"]) for record in sorted(new, key=lambda record: float(record["time"]))]

    def test_no_record_holds_the_salt(self, server: Any) -> None:
        assert "tenant of the wishes" not in server.audit.read_text()
