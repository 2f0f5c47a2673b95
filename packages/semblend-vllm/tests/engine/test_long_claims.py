"""Rows that one step cannot hold are computed over several, and the answer is the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from semblend_core import Span
from semblend_core.recompute import MeanShift
from semblend_core.serving import Claim, ProbeTrust, Rows
from semblend_vllm.scheduler.long_claims import LEAST_TOGETHER, LongClaim
from semblend_vllm.scheduler.rows import RowRoom

STEP = 128
PASSAGES = [
    f"Chapter {name}. "
    + " ".join(f"On day {n} the {name} made {n * 7 % 50 + 3} knots and {n * 13 % 90 + 5} miles." for n in range(1, 13))
    for name in ("Albatross", "Bonaventure", "Calypso", "Dolphin")
]
RECIPIENT = "Four logs.\n\n" + "\n\n".join(PASSAGES) + "\n\nQuestion: which ship was fastest?\nAnswer:"


@pytest.fixture
def narrow(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The engine, with little room for rows in a step, and no probes."""
    admission = engine.side.admission
    monkeypatch.setattr(admission, "room", RowRoom(STEP, 8))
    monkeypatch.setattr(admission, "probes", ProbeTrust(replace(admission._settings, probe="never")))
    return engine


@pytest.fixture
def long_claims(narrow: Any, monkeypatch: pytest.MonkeyPatch) -> list[Claim]:
    """The claims that were computed over several steps."""
    seen: list[Claim] = []
    begin = narrow.side.long_claims.begin

    def noted(life: Any, claim: Claim, load: Any) -> None:
        seen.append(claim)
        begin(life, claim, load)

    monkeypatch.setattr(narrow.side.long_claims, "begin", noted)
    return seen


@pytest.fixture
def row_steps(narrow: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rows of each step that had some of such claims."""
    seen: list[Any] = []
    take_chosen = narrow.side.long_claims.take_chosen

    def noted() -> Any:
        taken = take_chosen()
        seen.extend(rows for _, rows in taken)
        return taken

    monkeypatch.setattr(narrow.side.long_claims, "take_chosen", noted)
    return seen


@pytest.fixture
def outputs(narrow: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each step was to do."""
    seen: list[Any] = []
    schedule = narrow.scheduler.schedule
    monkeypatch.setattr(narrow.scheduler, "schedule", lambda *each: seen.append(schedule(*each)) or seen[-1])
    return seen


def with_donors(engine: Any, salt: str) -> None:
    for number, passage in enumerate(PASSAGES):
        engine.ask(f"Log {number}:\n{passage}\n\nTitle:", salt=salt, tokens=1)
    engine.settle()


def free_blocks(engine: Any) -> int:
    return int(engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def test_rows_of_several_steps(narrow: Any, divergence: Any, long_claims: list[Claim], row_steps: list[Any]) -> None:
    with_donors(narrow, "long")
    before = narrow.stats().confirmed_tokens
    reused = narrow.ask(RECIPIENT, salt="long")
    cold = narrow.ask(RECIPIENT, salt="long, cold", reuse="off")
    (claim,) = long_claims
    assert len(row_steps) > 1
    assert sum(end - start for rows in row_steps for start, end in rows) == claim.row_tokens
    assert reused.cached_tokens == narrow.stats().confirmed_tokens - before == claim.reused_tokens
    assert divergence(cold, reused) < 0.1
    narrow.check_integrity()


def test_workers_are_told_that_a_step_of_nothing_but_rows_computes(
    narrow: Any, long_claims: list[Claim], outputs: list[Any]
) -> None:
    with_donors(narrow, "long, alone")
    outputs.clear()
    narrow.ask(RECIPIENT, salt="long, alone", tokens=1)
    assert long_claims
    told = [(each.total_num_scheduled_tokens > 0, each.kv_connector_metadata.computes) for each in outputs]
    assert all(computes == known for computes, known in told)
    assert sum(known for _, known in told) > 1


def test_nothing_of_it_is_in_the_exact_cache(narrow: Any, long_claims: list[Claim]) -> None:
    with_donors(narrow, "long, pure")
    narrow.ask(RECIPIENT, salt="long, pure")
    probe = narrow.ask(RECIPIENT, salt="long, pure", reuse="off")
    assert long_claims
    assert probe.cached_tokens <= long_claims[0].first_approximate
    cold = narrow.ask(RECIPIENT, salt="long, pure, cold", reuse="off")
    assert probe.text == cold.text


def test_beside_other_requests(narrow: Any, divergence: Any, long_claims: list[Claim]) -> None:
    with_donors(narrow, "long, busy")
    others = [f"Ship {n} sailed" for n in range(6)]
    together = narrow.ask_all([*others, RECIPIENT], salt="long, busy", tokens=24)
    alone = narrow.ask_all([*others, RECIPIENT], salt="long, busy, cold", reuse="off", tokens=24)
    assert long_claims
    assert [answer.text for answer in together[:6]] == [answer.text for answer in alone[:6]]
    assert divergence(alone[6], together[6]) < 0.1
    narrow.check_integrity()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_abort_in_between_gives_everything_back(narrow: Any, long_claims: list[Claim], steps: int) -> None:
    from vllm import SamplingParams

    salt = f"long, abort {steps}"
    with_donors(narrow, salt)
    free = free_blocks(narrow)
    engine = narrow.llm.llm_engine
    engine.add_request("doomed", {"prompt": RECIPIENT, "cache_salt": salt}, SamplingParams(max_tokens=4))
    for _ in range(steps):
        engine.step()
    engine.abort_request(["doomed"])
    while engine.has_unfinished_requests():
        engine.step()
    narrow.ask("Is anybody there?", salt=salt, tokens=1)  # vLLM cleans up in the steps that follow.
    assert long_claims
    assert free_blocks(narrow) == free
    narrow.check_integrity()


def test_a_load_that_fails_is_a_cold_prefill(
    narrow: Any, long_claims: list[Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_donors(narrow, "long, gone")
    cold = narrow.ask(RECIPIENT, salt="long, gone, cold", reuse="off")
    before = int(narrow.stats().declines.get("donor_evicted", 0))
    with monkeypatch.context() as patched:
        patched.setattr(narrow.worker._store, "acquire", lambda *_: None)
        answer = narrow.ask(RECIPIENT, salt="long, gone")
    assert long_claims
    assert answer.text == cold.text
    assert narrow.stats().declines["donor_evicted"] == before + 1
    narrow.check_integrity()


def chosen_by_steps(rows: Rows, spans: list[Span], rooms: list[int]) -> list[Rows]:
    claim = Claim(0, spans[-1].target_end, tuple(spans), rows, MeanShift())
    life: Any = SimpleNamespace(request_id="r")
    long, found = LongClaim(life, claim, load=life, told=0, left=rows), []
    for room in rooms:
        long.choose(room, 256)
        found.append(long.chosen)
    return found


def test_a_few_rows_do_not_say_how_a_span_is_corrected_that_has_thousands() -> None:
    first, second = Span(16, "a", 0, 8192), Span(8208, "b", 0, 16_384)
    rows = ((0, 2064), (8208, 12_208))
    # The room of the first step ends two rows into the second span: they come with the next ones.
    assert chosen_by_steps(rows, [first, second], [2066, 2048]) == [((0, 2064),), ((8208, 10_256),)]
    # Some tens do.
    enough = 8208 + LEAST_TOGETHER
    assert chosen_by_steps(rows, [first, second], [2064 + LEAST_TOGETHER]) == [((0, 2064), (8208, enough))]
    # Where nothing stands before the span, a step that has room for no more goes on all the same.
    assert chosen_by_steps(((16, 4016),), [first], [18, 2048]) == [((16, 34),), ((34, 2082),)]
