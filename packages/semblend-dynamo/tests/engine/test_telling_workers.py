"""Mock workers that say who they are and what reached them: tenants, partial residency, evidence, preference."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fleet import Answer, Frontend, Router, fleet_with_files
from prompts import documents, first_frame, other_frame

NAMES = ("ada", "ben", "cy")
Start = Callable[..., tuple[Router, Frontend]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A router with these variables in front of three telling workers."""
    with ExitStack() as stack:

        def starting(
            *options: str, workers: dict[str, str] | None = None, **environment: str
        ) -> tuple[Router, Frontend]:
            fleet = stack.enter_context(fleet_with_files(tmp_path))
            fleet.start_telling_workers(*NAMES, **(workers or {}))
            router = fleet.start_router("router", *options, **environment)
            frontend = fleet.start_frontend("front", "round-robin")
            fleet.until_telling_workers_serve(frontend, *NAMES)
            return router, frontend

        yield starting


def who(answer: Answer) -> str:
    name = answer.worker_said["who"]
    assert name in NAMES
    return str(name)


def homes_of(
    router: Router, frontend: Frontend, texts: list[str], *, kv_events: bool = True, **options: str
) -> list[str]:
    donors = router.figure("semblend_placement_donors")
    homes = [who(frontend.ask(first_frame(number, text), **options)) for number, text in enumerate(texts)]
    router.until_donors(donors + len(texts), kv_events=kv_events)
    return homes


def test_evidence_travels_to_the_worker_and_claims_a_placement_only(start: Start) -> None:
    router, frontend = start()
    [text] = documents(1, seed=1)
    [home] = homes_of(router, frontend, [text])
    first = frontend.ask("Nothing that was seen before.")
    assert first.worker_said["semblend_evidence"] is None
    answer = frontend.ask(other_frame(0, text))
    assert who(answer) == home
    evidence = answer.worker_said["semblend_evidence"]
    assert (evidence["outcome"], evidence["reason"]) == ("placement", "spans")
    [span] = evidence["spans"]
    assert span["length"] >= len(text)
    assert span["target_start"] != span["donor_start"]


def test_a_tenant_is_placed_by_its_own_donors_alone(start: Start) -> None:
    """The salt goes into Dynamo's block hashes and into the namespace; without one nothing is shared by default."""
    router, frontend = start(SEMBLEND_SHARING="salted")
    texts = documents(6, seed=2)
    homes = homes_of(router, frontend, texts, tenant="acme")
    for number, text in enumerate(texts):
        answer = frontend.ask(other_frame(number, text), tenant="acme")
        assert who(answer) == homes[number]
        assert answer.semblend is not None
        assert answer.semblend["reason"] == "spans"
    for tenant, finding in [("umbrella", "no_donors"), (None, "no_salt")]:
        answer = frontend.ask(other_frame(90, texts[0]), tenant=tenant)
        assert answer.semblend is not None
        assert (answer.semblend["reason"], answer.semblend["finding"]) == ("no_finding", finding)
    assert "acme" not in router.log.read_text()


def test_a_donor_that_is_held_in_part_counts_in_part(start: Start) -> None:
    router, frontend = start(workers={"TELLING_BLOCKS": "20"})
    [text] = documents(1, seed=3)
    [home] = homes_of(router, frontend, [text])
    answer = frontend.ask(other_frame(0, text))
    assert answer.semblend is not None
    assert who(answer) == home
    assert 200 < answer.semblend["credit_tokens"] <= 320


def test_too_little_that_is_held_is_left_to_dynamo(start: Start) -> None:
    router, frontend = start(workers={"TELLING_BLOCKS": "4"})
    [text] = documents(1, seed=4)
    homes_of(router, frontend, [text])
    answer = frontend.ask(other_frame(0, text))
    assert answer.semblend is not None
    assert (answer.semblend["outcome"], answer.semblend["reason"]) == ("native", "too_little")


def test_workers_without_kv_events_are_seen_by_where_requests_went(start: Start) -> None:
    """Dynamo's index then remembers its own routing."""
    router, frontend = start("--kv-router-config", '{"use_kv_events": false}', workers={"TELLING_BLOCKS": "0"})
    # Among workers that are alike Dynamo draws one: now and then the same several times.
    texts = documents(24, seed=8)
    homes = homes_of(router, frontend, texts, kv_events=False)
    assert len(set(homes)) > 1
    assert [who(frontend.ask(other_frame(number, text))) for number, text in enumerate(texts)] == homes


def test_a_preference_moves_requests_and_names_no_worker(start: Start) -> None:
    """Each worker has a taint of its own, by which Dynamo's rule is made to prefer it."""
    router, frontend = start(SEMBLEND_PLACEMENT_MODE="prefer")
    texts = documents(12, seed=5)
    homes = homes_of(router, frontend, texts)
    assert len(set(homes)) > 1
    landed = [who(frontend.ask(other_frame(number, text))) for number, text in enumerate(texts)]
    assert sum(a == b for a, b in zip(landed, homes, strict=True)) >= 11


def test_switched_off_it_only_reports(start: Start) -> None:
    router, frontend = start(SEMBLEND_PLACEMENT_MODE="off")
    [text] = documents(1, seed=6)
    homes_of(router, frontend, [text])
    answer = frontend.ask(other_frame(0, text))
    assert answer.semblend is not None
    assert (answer.semblend["outcome"], answer.semblend["reason"]) == ("native", "spans")
    assert answer.worker_said["semblend_evidence"] is None


def test_a_prompt_that_only_reads_alike_is_biased_and_counted(start: Start) -> None:
    """MinHash over tokens; no run of 64 tokens is shared."""
    router, frontend = start(
        SEMBLEND_EMBEDDER="jaccard",
        SEMBLEND_MIN_SIMILARITY="0.3",
        SEMBLEND_PLACEMENT_LIKENESS="0.1",
        SEMBLEND_PLACEMENT_LIKENESS_WAIT_MS="5000",
    )
    [text] = documents(1, seed=7)
    [home] = homes_of(router, frontend, [text])
    words = text.split()
    alike = " ".join(word if number % 5 else "other" for number, word in enumerate(words))
    answer = frontend.ask(other_frame(0, alike))
    assert answer.semblend is not None
    assert answer.semblend["reason"] == "likeness"
    assert who(answer) == home
    assert router.figure("semblend_placement_events_total") >= 2
