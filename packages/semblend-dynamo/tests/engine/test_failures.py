"""A worker is killed while requests run: every request is served."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleet import Fleet, Frontend, Process, Router, fleet_with_files
from letters import LETTERS, OPENING
from prompts import documents, first_frame, other_frame

ANSWER = 200
CLIENTS = 8
NAMES = ("ada", "ben", "cy")
CONTINUED = 'semblend_placement_events_total{event="continued_elsewhere"}'


def is_whole(answer: str, tokens: int) -> bool:
    """The tokens tell their positions: none is missing, none comes twice."""
    begin = LETTERS.index(answer[0])
    return answer == "".join(LETTERS[(begin + n) % len(LETTERS)] for n in range(tokens))


@dataclass(frozen=True)
class Gated:
    """A fleet whose workers stop in the middle of their answers while the file ``gate`` does not exist."""

    gate: Path
    workers: dict[str, Process]
    router: Router
    frontend: Frontend


@contextmanager
def gated_fleet(tmp_path: Path, *names: str) -> Iterator[Gated]:
    gate = tmp_path / "gate"
    with fleet_with_files(tmp_path) as fleet:
        workers = fleet.start_telling_workers(*names, TELLING_GATE=str(gate))
        router = fleet.start_router()
        frontend = fleet.start_frontend("front", "round-robin")
        fleet.until_telling_workers_serve(frontend, *names)
        yield Gated(gate, workers, router, frontend)


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
    """All are answered to their last token. The gate holds them: none can end before the worker is killed."""
    with gated_fleet(tmp_path, *NAMES) as fleet:
        donors = fleet.router.figure("semblend_placement_donors")
        texts = documents(12, seed=2)
        for number, text in enumerate(texts):
            fleet.frontend.ask(first_frame(number, text))
        fleet.router.until_donors(donors + len(texts))
        begun: list[str] = []

        def ask(number: int) -> str:
            answer = ""
            text = texts[number % len(texts)]
            for part in fleet.frontend.stream(other_frame(1000 + number, text), max_tokens=ANSWER):
                if part.text and not answer:
                    begun.append(part.worker_said["who"])
                answer += part.text
            return answer

        with ThreadPoolExecutor(CLIENTS) as clients:
            asked = [clients.submit(ask, number) for number in range(120)]
            try:
                while len(begun) < CLIENTS:
                    assert not any(each.done() for each in asked), "no answer can pass the gate"
                    time.sleep(0.01)
                [(victim, cut_off)] = Counter(begun).most_common(1)
                fleet.workers[victim].kill()
            finally:
                fleet.gate.touch()  # The pool waits for its clients, and they for the gate.
            assert [each.result() for each in asked if not is_whole(each.result(), ANSWER)] == []
        assert fleet.router.figure(CONTINUED) == cut_off, "the router had to step in"


def test_an_answer_that_had_begun_is_continued_by_another_worker(tmp_path: Path) -> None:
    with gated_fleet(tmp_path, "ada", "ben") as fleet:
        donors = fleet.router.figure("semblend_placement_donors")
        [text] = documents(1, seed=4)
        home = fleet.frontend.ask(first_frame(1, text)).worker_said["who"]
        fleet.router.until_donors(donors + 1)
        answer, who = "", home
        for part in fleet.frontend.stream(other_frame(1, text), max_tokens=60):
            answer += part.text
            if part.text and not fleet.gate.exists():
                assert part.worker_said["who"] == home
                fleet.workers[home].kill()
                fleet.gate.touch()
            who = part.worker_said.get("who", who)
            usage = part.usage
        assert who == ({"ada", "ben"} - {home}).pop()
        assert usage["completion_tokens"] == 60
        assert is_whole(answer, 60)
        assert fleet.router.figure(CONTINUED) == 1


def test_an_answer_with_all_its_tokens_is_whole_when_its_worker_dies(tmp_path: Path) -> None:
    """Before the worker says that the answer ended, and before it closes the stream behind that."""
    with gated_fleet(tmp_path, *NAMES) as fleet:
        for tokens, text in zip((OPENING, OPENING - 1), documents(2, seed=5), strict=True):
            fleet.gate.unlink(missing_ok=True)
            answer = ""
            parts = fleet.frontend.stream(first_frame(tokens, text), max_tokens=tokens)
            for number, part in enumerate(parts, start=1):
                answer += part.text
                if number == OPENING:
                    fleet.workers[part.worker_said["who"]].kill()
                    fleet.gate.touch()
                usage = part.usage
            assert is_whole(answer, tokens)
            assert usage["completion_tokens"] == tokens
        assert fleet.router.figure(CONTINUED) == 0, "nothing was left to be asked of another worker"


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
