"""Two routers, one frontend each: what one learns the other knows, also after a restart."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleet import Fleet, Frontend, Router, fleet_with_files
from operator_client import ask_router
from prompts import documents, first_frame, other_frame

DONORS = 9


@dataclass
class Pair:
    fleet: Fleet
    first: Router
    second: Router
    frontend: Frontend
    """It takes the routers in turn."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with fleet_with_files(tmp_path) as fleet:
        fleet.start_workers(3)
        first = fleet.start_router("router-1")
        second = fleet.start_router("router-2")
        frontend = fleet.start_frontend("front", "round-robin", "--migration-limit", "3")
        fleet.until_all_workers_serve(frontend)
        yield Pair(fleet, first, second, frontend)


def reframed_landings(pair: Pair, texts: list[str], frame: int) -> list[int]:
    return [pair.fleet.landed(pair.frontend, other_frame(frame + n, text))[0] for n, text in enumerate(texts)]


def test_replicas_place_alike_and_a_restarted_one_catches_up(pair: Pair) -> None:
    texts = documents(DONORS, seed=1)
    homes = [pair.fleet.landed(pair.frontend, first_frame(n, text))[0] for n, text in enumerate(texts)]
    served = [router.figure("semblend_placement_requests_total") for router in (pair.first, pair.second)]
    assert min(served) > 0, "the frontend takes both routers in turn"
    pair.first.until_donors(DONORS)
    pair.second.until_donors(DONORS)
    assert reframed_landings(pair, texts, 100) == homes

    pair.second.kill()
    again = pair.fleet.start_router("router-2b")
    assert again.figure("semblend_placement_donors") == pair.first.figure("semblend_placement_donors")
    pair.first.kill()
    # From here on every request goes through the one that has started anew, and has seen none of these prompts.
    assert reframed_landings(pair, texts, 200) == homes
    assert again.figure("semblend_placement_landed_as_chosen_total") == DONORS


def test_a_purge_and_a_reset_reach_every_replica(pair: Pair) -> None:
    for number, text in enumerate(documents(4, seed=2)):
        pair.frontend.ask(first_frame(number, text))
    pair.first.until_donors(4)
    pair.second.until_donors(4)
    routers = ask_router(pair.fleet, {"order": "report"})
    assert len(routers) == 2
    assert [report["donors"] for report in routers] == [4, 4]
    assert [len(report["followed"]) for report in routers] == [1, 1]

    [refused] = ask_router(pair.fleet, {"order": "purge"}, only_one=True)
    assert "error" in refused
    [purged] = ask_router(pair.fleet, {"order": "purge", "all": True}, only_one=True)
    assert purged == {"purged": 4}
    pair.first.until_donors_are(0)
    pair.second.until_donors_are(0)
    for number, text in enumerate(documents(4, seed=3)):
        pair.frontend.ask(first_frame(10 + number, text))
    pair.second.until_donors(4)
    [reset] = ask_router(pair.fleet, {"order": "reset"}, only_one=True)
    assert reset == {"generation": 1}
    pair.first.until_donors_are(0)
    pair.second.until_donors_are(0)
