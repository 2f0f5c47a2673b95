"""Real Dynamo, three mock workers, discovery by files. Where a request landed, the workers say by their own counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleet import BLOCK, Answer, Fleet, Frontend, Router, fleet_with_files
from prompts import documents, first_frame, other_frame

REFRAMED = 30


@dataclass
class Running:
    fleet: Fleet
    router: Router
    semblend: Frontend
    native: Frontend
    """Dynamo's own KV routing to the same workers."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with fleet_with_files(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_workers(3)
        router = fleet.start_router()
        semblend = fleet.start_frontend("front", "round-robin")
        native = fleet.start_frontend("workers", "kv")
        fleet.until_all_workers_serve(semblend)
        fleet.until_all_workers_serve(native)
        yield Running(fleet, router, semblend, native)


def reframed_at_home(fleet: Fleet, frontend: Frontend, seed: int) -> int:
    """How many of the reframed prompts land on the worker that served their document first."""
    texts = documents(REFRAMED, seed=seed)
    homes = [fleet.landed(frontend, first_frame(seed * 1000 + n, text))[0] for n, text in enumerate(texts)]
    assert len(set(homes)) == 3, "the donors are spread over all workers"
    at_home = 0
    for number, text in enumerate(texts):
        landed, answer = fleet.landed(frontend, other_frame(seed * 1000 + number, text))
        assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 0, "nothing of it is an exact prefix"
        at_home += landed == homes[number]
    return at_home


def test_reframed_prompts_land_on_the_donors_worker(running: Running) -> None:
    assert reframed_at_home(running.fleet, running.semblend, seed=1) >= 28


def test_native_routing_lands_there_by_chance(running: Running) -> None:
    """About a third of them: with thirty prompts, more than 20 would come about once in ten thousand runs."""
    assert reframed_at_home(running.fleet, running.native, seed=2) <= 20


@pytest.mark.parametrize("which", ["semblend", "native"])
def test_conversations_stay_where_their_exact_prefix_is(running: Running, which: str) -> None:
    """Placed as natively: every turn goes to the worker that has the turns before it, and finds them cached."""
    frontend: Frontend = getattr(running, which)
    for number, text in enumerate(documents(6, seed=100 + len(which)), start=100 * len(which)):
        homes = known_to_be_held(running.fleet, frontend, first_frame(number, text))
        for turn in range(3):
            text += f" And then, turn {turn}: " + documents(1, seed=turn + 50, words=20)[0]
            landed, answer = running.fleet.landed(frontend, first_frame(number, text))
            assert landed in homes
            assert cached_tokens(answer) > 800


def known_to_be_held(fleet: Fleet, frontend: Frontend, prompt: str) -> set[int]:
    """The workers that hold it, asked until five answers in a row come from a cache.

    Workers tell of what they hold when they find the time; before that a request finds one of them by chance.
    """
    homes: set[int] = set()
    cached = 0
    for _ in range(200):
        landed, answer = fleet.landed(frontend, prompt)
        homes.add(landed)
        cached = cached + 1 if cached_tokens(answer) > 800 else 0
        if cached == 5:
            break
    return homes


def cached_tokens(answer: Answer) -> int:
    return int(answer.usage["prompt_tokens_details"]["cached_tokens"] or 0)


def test_the_account_tells_a_placement_and_no_reuse(running: Running) -> None:
    donors = running.router.figure("semblend_placement_donors")
    [text] = documents(1, seed=300)
    _, first = running.fleet.landed(running.semblend, first_frame(3000, text))
    assert first.semblend is not None
    assert (first.semblend["outcome"], first.semblend["reason"]) == ("native", "no_finding")
    running.router.until_donors(donors + 1)
    landed, second = running.fleet.landed(running.semblend, other_frame(3000, text))
    assert second.semblend is not None
    assert (second.semblend["outcome"], second.semblend["reason"]) == ("placement", "spans")
    worker = running.fleet.workers[landed].id
    assert second.semblend["chosen"] == second.semblend["landed"] == f"{worker}:0"
    assert second.semblend["credit_tokens"] > len(text) - BLOCK, "a block that is not full is not held"


def test_the_metrics_count_placements_by_reason(running: Running) -> None:
    before = running.router.figure("semblend_placement_landed_as_chosen_total")
    [text] = documents(1, seed=301)
    donors = running.router.figure("semblend_placement_donors")
    running.semblend.ask(first_frame(3001, text))
    running.router.until_donors(donors + 1)
    running.semblend.ask(other_frame(3001, text))
    assert running.router.figure("semblend_placement_landed_as_chosen_total") == before + 1
    assert running.router.figure("semblend_placement_requests_total") >= before + 2


def test_a_prompt_of_several_donors_goes_where_most_of_it_lies(running: Running) -> None:
    """Two short passages on one worker outweigh one longer passage on another."""
    fleet, frontend = running.fleet, running.semblend
    donors = running.router.figure("semblend_placement_donors")
    homes: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for number, text in enumerate(documents(12, seed=400, words=60), start=4000):
        landed, _ = fleet.landed(frontend, first_frame(number, text))
        homes[landed].append(text)
    running.router.until_donors(donors + 12)
    richest, other = sorted(homes, key=lambda worker: -len(homes[worker]))[:2]
    two, one = homes[richest][:2], homes[other][:1]
    landed, answer = fleet.landed(frontend, "Compare these passages: " + " | ".join([two[0], one[0], two[1]]))
    assert landed == richest
    assert answer.semblend is not None
    assert answer.semblend["reason"] == "spans"


def test_wrong_settings_stop_the_start_and_name_themselves(tmp_path: Path) -> None:
    with fleet_with_files(tmp_path) as fleet, pytest.raises(AssertionError, match="SEMBLEND_PLACEMENT_MODE"):
        fleet.start_router(SEMBLEND_PLACEMENT_MODE="pinn")
