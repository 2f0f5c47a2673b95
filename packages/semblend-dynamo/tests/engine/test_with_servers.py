"""The same with etcd for discovery and NATS for requests and events, as larger fleets run it."""

from pathlib import Path

import pytest
import servers
from fleet import fleet
from prompts import documents, first_frame, other_frame

REFRAMED = 30

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(bool(servers.missing()), reason=f"install {' '.join(servers.missing())} to run it"),
]


def test_two_routers_place_reframed_prompts_at_home_and_survive_a_restart(tmp_path: Path) -> None:
    with servers.etcd_and_nats(tmp_path) as planes, fleet(tmp_path, planes) as running:
        running.start_workers(3)
        first = running.start_router("router-1")
        second = running.start_router("router-2")
        frontend = running.start_frontend("front", "round-robin", "--migration-limit", "3")
        running.until_all_workers_serve(frontend)
        texts = documents(REFRAMED, seed=1)
        homes = [running.landed(frontend, first_frame(n, text))[0] for n, text in enumerate(texts)]
        assert len(set(homes)) == 3
        first.until_donors(REFRAMED)
        second.until_donors(REFRAMED)
        at_home = 0
        for number, text in enumerate(texts):
            landed, answer = running.landed(frontend, other_frame(number, text))
            assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 0
            at_home += landed == homes[number]
        assert at_home >= 28

        first.stop()
        again = running.start_router("router-1b")
        assert again.figure("semblend_placement_donors") == second.figure("semblend_placement_donors")
        second.stop()
        landings = [running.landed(frontend, other_frame(500 + n, text))[0] for n, text in enumerate(texts)]
        assert sum(a == b for a, b in zip(landings, homes, strict=True)) >= 28

        victim = homes[0]
        running.workers[victim].kill()
        survivors = [worker for number, worker in enumerate(running.workers) if number != victim]
        before = sum(worker.served() for worker in survivors)
        asked = [number for number, home in enumerate(homes) if home == victim]
        for number in asked:
            frontend.ask(other_frame(900 + number, texts[number]))
        assert sum(worker.served() for worker in survivors) == before + len(asked)


def test_native_routing_lands_at_home_by_chance(tmp_path: Path) -> None:
    with servers.etcd_and_nats(tmp_path) as planes, fleet(tmp_path, planes) as running:
        running.start_workers(3)
        frontend = running.start_frontend("workers", "kv")
        running.until_all_workers_serve(frontend)
        texts = documents(REFRAMED, seed=2)
        homes = [running.landed(frontend, first_frame(n, text))[0] for n, text in enumerate(texts)]
        landings = [running.landed(frontend, other_frame(n, text))[0] for n, text in enumerate(texts)]
        assert sum(a == b for a, b in zip(landings, homes, strict=True)) <= 20
