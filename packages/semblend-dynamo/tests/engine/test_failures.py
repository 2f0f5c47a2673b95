"""A worker is killed while requests run: every request is served."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fleet import Fleet, Frontend, Router, fleet_with_files
from letters import LETTERS
from prompts import documents, first_frame, other_frame

ANSWER = 200


def until_spread(
    fleet: Fleet, frontend: Frontend, router: Router, seed: int, least: int
) -> tuple[list[str], list[int]]:
    """Texts, so many at least, and the worker of each. A worker that is slow to renew its lease is passed over."""
    texts: list[str] = []
    homes: list[int] = []
    for text in documents(5 * least, seed=seed):
        if len(texts) >= least and set(homes) == {0, 1, 2}:
            break
        homes.append(fleet.landed(frontend, first_frame(len(texts), text))[0])
        texts.append(text)
    router.until_donors(len(texts))
    assert set(homes) == {0, 1, 2}
    return texts, homes


def test_pinned_requests_are_served_when_their_worker_dies(tmp_path: Path) -> None:
    """Also while discovery still lists it: before the first chunk, Dynamo's own rule takes over."""
    with fleet_with_files(tmp_path) as fleet:
        fleet.start_workers(3)
        router = fleet.start_router()
        frontend = fleet.start_frontend("front", "round-robin")
        fleet.until_all_workers_serve(frontend)
        texts, homes = until_spread(fleet, frontend, router, seed=1, least=18)
        victim = homes[0]
        mine = [number for number, home in enumerate(homes) if home == victim]
        fleet.workers[victim].kill()
        survivors = [worker for number, worker in enumerate(fleet.workers) if number != victim]
        for number in mine:
            before = sum(worker.served() for worker in survivors)
            frontend.ask(other_frame(number, texts[number]))
            assert sum(worker.served() for worker in survivors) == before + 1, "a living worker says that it served it"


def test_requests_under_way_are_served_when_a_worker_dies(tmp_path: Path) -> None:
    """All are answered to their last token."""
    with fleet_with_files(tmp_path) as fleet:
        fleet.start_workers(3)
        router = fleet.start_router()
        frontend = fleet.start_frontend("front", "round-robin")
        fleet.until_all_workers_serve(frontend)
        texts, homes = until_spread(fleet, frontend, router, seed=2, least=12)
        done = threading.Semaphore(0)

        def ask(number: int) -> int:
            which = number % len(texts)
            status, body = frontend.post(other_frame(1000 + number, texts[which]), max_tokens=ANSWER)
            done.release()
            assert status == 200, body
            return int(json.loads(body)["usage"]["completion_tokens"])

        with ThreadPoolExecutor(8) as clients:
            asked = [clients.submit(ask, number) for number in range(120)]
            for _ in range(20):
                done.acquire()
            victim = fleet.workers[homes[0]]
            while victim.under_way() == 0:
                assert not all(each.done() for each in asked), "the victim never had anything to do"
            victim.kill()
            assert [each.result() for each in asked] == [ANSWER] * 120
        assert router.figure("semblend_placement_events_total") > 0, "the router had to step in"


def test_an_answer_that_had_begun_is_continued_by_another_worker(tmp_path: Path) -> None:
    """The tokens tell their positions: none is missing, none comes twice."""
    gate = tmp_path / "gate"
    with fleet_with_files(tmp_path) as fleet:
        workers = fleet.start_telling_workers("ada", "ben", TELLING_GATE=str(gate))
        router = fleet.start_router()
        frontend = fleet.start_frontend("front", "round-robin")
        fleet.until_telling_workers_serve(frontend, "ada", "ben")
        donors = router.figure("semblend_placement_donors")
        [text] = documents(1, seed=4)
        home = frontend.ask(first_frame(1, text)).worker_said["who"]
        router.until_donors(donors + 1)
        answer, who = "", home
        for part in frontend.stream(other_frame(1, text), max_tokens=60):
            answer += part.text
            if part.text and not gate.exists():
                assert part.worker_said["who"] == home
                workers[home].kill()
                gate.touch()
            who = part.worker_said.get("who", who)
            usage = part.usage
        assert who == ({"ada", "ben"} - {home}).pop()
        assert usage["completion_tokens"] == 60
        begin = LETTERS.index(answer[0])
        assert answer == "".join(LETTERS[(begin + n) % len(LETTERS)] for n in range(60))
        assert router.figure('semblend_placement_events_total{event="continued_elsewhere"}') == 1


@pytest.mark.exhaustive
def test_a_worker_that_comes_back_is_used_again(tmp_path: Path) -> None:
    with fleet_with_files(tmp_path) as fleet:
        fleet.start_workers(2)
        router = fleet.start_router()
        frontend = fleet.start_frontend("front", "round-robin")
        fleet.until_all_workers_serve(frontend)
        fleet.workers.pop().kill()
        fleet.start_workers(1)
        fleet.until_all_workers_serve(frontend)
        [text] = documents(1, seed=3)
        home, _ = fleet.landed(frontend, first_frame(1, text))
        router.until_donors(1, kv_events=False)
        deadline = time.monotonic() + 600
        number = 0
        while fleet.landed(frontend, other_frame(number, text))[0] != home:
            number += 1
            assert time.monotonic() < deadline
