"""Which replica a request is sent to, by policy."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from typing import Any

import httpx
import pytest

from semblend_core.testing import wait_until
from semblend_dynamo.evidence import open_evidence
from semblend_dynamo.placement import PlacementSettings


def document(seed: int, words: int = 300) -> str:
    draw = random.Random(seed)
    return " ".join(
        draw.choice(["harbour", "ledger", "ship", "crane", "tide", "berth"]) + str(draw.randrange(9999))
        for _ in range(words)
    )


def replica_of(answer: Any) -> str:
    assert answer.status_code == 200
    name: str = answer.headers["x-semblend-replica"]
    return name


def learnt(fleet: Any, donors: int) -> None:
    """Landings are remembered beside the answers."""
    wait_until(lambda: fleet.status()["donors"] >= donors, "the landing is remembered", every_s=0.01)


def test_round_robin_takes_turns(fleet: Any) -> None:
    served = fleet(3, policy="round_robin")
    assert Counter(replica_of(served.chat("hi")) for _ in range(9)) == dict.fromkeys(
        ("replica-0", "replica-1", "replica-2"), 3
    )


def test_least_loaded_avoids_the_busy(fleet: Any) -> None:
    served = fleet(2, policy="least_loaded")
    served.router.backend.replicas[0].begin(1000)
    assert {replica_of(served.chat("hi")) for _ in range(4)} == {"replica-1"}


def test_prefix_hash_sends_the_same_beginning_to_the_same_replica(fleet: Any) -> None:
    served = fleet(3, policy="prefix_hash")
    openings = [document(seed, 100) for seed in range(12)]
    first = [replica_of(served.chat(f"{opening} one")) for opening in openings]
    assert [replica_of(served.chat(f"{opening} two")) for opening in openings] == first
    assert len(set(first)) > 1


def test_prefix_hash_passes_over_a_replica_that_has_far_too_much_to_do(fleet: Any) -> None:
    served = fleet(2, policy="prefix_hash")
    home = replica_of(served.chat(document(1)))
    busy = next(each for each in served.router.backend.replicas if each.name == home)
    busy.in_flight += 50
    answer = served.chat(document(1))
    assert replica_of(answer) != home
    assert answer.headers["x-semblend-routing-reason"] == "prefix_replica_busy"


@pytest.mark.parametrize("way", ["chat", "complete"])
def test_a_reframed_prompt_goes_to_the_replica_that_saw_its_document(fleet: Any, way: str) -> None:
    """Another instruction in front: no exact prefix in common, and still always the right one of three."""
    served = fleet(3)
    ask = getattr(served, way)
    homes = [replica_of(ask(f"Summarize this.\n\n{document(seed)}")) for seed in range(12)]
    learnt(served, 12)
    assert len(set(homes)) == 3
    order = list(range(12))
    random.Random(0).shuffle(order)
    for seed in order:
        answer = ask(f"You are a lawyer who reads slowly. List the names in:\n\n{document(seed)}\n\nBe brief.")
        assert replica_of(answer) == homes[seed]
        assert answer.headers["x-semblend-routing-path"] == "semantic_locality"
        assert answer.headers["x-semblend-routing-reason"] == "spans"
        assert float(answer.headers["x-semblend-similarity"]) > 0.8


def test_nothing_in_common_is_no_placement(fleet: Any) -> None:
    served = fleet(2)
    served.chat(document(1))
    learnt(served, 1)
    answer = served.chat(document(2))
    assert answer.headers["x-semblend-routing-path"] == "fallback"
    assert answer.headers["x-semblend-similarity"] == "0.000"


def test_a_busy_home_is_given_up(fleet: Any) -> None:
    """The gain of 300 words is less than what 5,000 words under way cost."""
    served = fleet(2)
    home = replica_of(served.chat(document(1)))
    learnt(served, 1)
    next(each for each in served.router.backend.replicas if each.name == home).tokens_in_flight += 5000
    answer = served.chat(f"Again: {document(1)}")
    assert replica_of(answer) != home
    assert answer.headers["x-semblend-routing-reason"] == "busy"


def test_a_tenant_finds_its_own_prompts_only(fleet: Any) -> None:
    served = fleet(2)
    served.chat(document(1), headers={"x-tenant-id": "a"})
    learnt(served, 1)
    ours = served.chat(f"Again: {document(1)}", headers={"x-tenant-id": "a"})
    theirs = served.chat(f"Again: {document(1)}", headers={"x-tenant-id": "b"})
    other_salt = served.chat(f"Again: {document(1)}", headers={"x-tenant-id": "a"}, cache_salt="mine")
    nobodys = served.chat(f"Again: {document(1)}", headers={"x-tenant-id": ""})
    found = [each.headers["x-semblend-routing-path"] for each in (ours, theirs, other_salt, nobodys)]
    assert found == ["semantic_locality", "fallback", "fallback", "fallback"]
    assert nobodys.headers["x-semblend-routing-reason"] == "no_salt"


def test_prompts_of_token_ids_are_compared_as_such(fleet: Any) -> None:
    served = fleet(3)
    ids = [random.Random(7).randrange(50_000) for _ in range(400)]
    home = replica_of(served.complete([1, 2, 3, *ids]))
    learnt(served, 1)
    assert replica_of(served.complete([9, 9, *ids, 4])) == home


def test_a_tokenizer_may_read_the_prompts(fleet: Any, tmp_path: Any) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted(set(document(1).split()))
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    served = fleet(2, tokenizer=str(tmp_path))
    home = replica_of(served.complete(document(1)))
    learnt(served, 1)
    answer = served.complete(f"Some other words first. {document(1)}")
    assert replica_of(answer) == home
    assert served.status()["decisions"][0]["tokens"] == 304


def test_the_types_of_blocks_decide_between_two_homes(fleet: Any) -> None:
    """One replica holds the system prompt, the other the user's text of the same length: the weights choose."""
    system, question = document(1), document(2)
    asked = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    for weights, wanted in (("system=10,user=0.1", "replica-0"), ("system=0.1,user=10", "replica-1")):
        served = fleet(2, type_weights=weights)
        first = replica_of(served.chat("", messages=[asked[0]]))
        learnt(served, 1)
        second = replica_of(served.chat("", messages=[asked[1]]))
        learnt(served, 2)
        assert {first, second} == {"replica-0", "replica-1"}
        wanted = first if wanted == "replica-0" else second
        assert replica_of(served.chat("", messages=asked)) == wanted


def test_what_a_replica_held_is_taken_to_be_gone_when_its_cache_is_full(fleet: Any) -> None:
    served = fleet(2, cache_tokens=500)
    served.chat(document(1))
    learnt(served, 1)
    for seed in range(2, 8):
        served.chat(document(seed))
    learnt(served, 7)
    answer = served.chat(f"Again: {document(1)}")
    assert answer.headers["x-semblend-routing-reason"] == "not_resident"


def test_placement_can_be_switched_off(fleet: Any) -> None:
    served = fleet(2, placement=PlacementSettings(mode="off"))
    served.chat(document(1))
    learnt(served, 1)
    assert served.chat(f"Again: {document(1)}").headers["x-semblend-routing-path"] == "fallback"


def test_a_session_stays_with_its_replica(fleet: Any) -> None:
    served = fleet(3, policy="round_robin")
    session = {"x-session-id": "conversation"}
    home = replica_of(served.chat("one", headers=session))
    for text in ("two", "three", "four"):
        answer = served.chat(text, headers=session)
        assert replica_of(answer) == home
        assert answer.headers["x-semblend-routing-path"] == "session_affinity"
    # The same name in another tenant is another session.
    served.chat("one", headers={**session, "x-tenant-id": "b"})
    assert served.status()["sessions"] == 2


def test_sessions_are_forgotten_oldest_first_and_can_be_off(fleet: Any) -> None:
    served = fleet(2, policy="round_robin", sessions=2)
    for name in ("a", "b", "c"):
        served.chat("hi", headers={"x-session-id": name})
    assert served.status()["sessions"] == 2
    assert served.chat("hi", headers={"x-session-id": "a"}).headers["x-semblend-routing-path"] == "round_robin"
    off = fleet(2, policy="round_robin", sessions=0)
    homes = {replica_of(off.chat("hi", headers={"x-session-id": "a"})) for _ in range(4)}
    assert len(homes) == 2


def test_likeness_places_what_shares_no_tokens(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words in runs too short for a span: only the evidence of token sets brings them together."""
    monkeypatch.setenv("SEMBLEND_EMBEDDER", "jaccard")
    monkeypatch.setenv("SEMBLEND_MIN_SIMILARITY", "0.3")
    assert open_evidence() is not None
    words = document(1, 400).split()
    # Every tenth word is another one: runs of nine, far below a span, and most of the sets in common.
    near = " ".join(f"other{n}" if n % 10 == 9 else word for n, word in enumerate(words))
    served = fleet(2, likeness=True, placement=PlacementSettings(likeness=0.5, likeness_wait_ms=10_000))
    home = replica_of(served.chat(" ".join(words)))
    learnt(served, 1)
    evidence = served.router.policy._likeness._worker
    wait_until(lambda: evidence.stats().indexed == 1, "its likeness can be looked for", every_s=0.01)
    answer = served.chat(near)
    assert replica_of(answer) == home
    assert answer.headers["x-semblend-routing-path"] == "semantic_likeness"
    assert answer.headers["x-semblend-routing-reason"] == "likeness"
    assert served.chat(document(5)).headers["x-semblend-routing-path"] == "fallback"


def test_nothing_is_left_of_a_client_that_leaves_while_its_likeness_is_looked_for(
    fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMBLEND_EMBEDDER", "jaccard")
    served = fleet(2, likeness=True, placement=PlacementSettings(likeness=0.5, likeness_wait_ms=600_000))
    policy = served.router.policy
    monkeypatch.setattr(policy._likeness._worker, "poll", lambda request_id: None)
    where = httpx.URL(served.url)
    body = json.dumps({"model": "stub", "prompt": document(1)}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-tenant-id: a\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((where.host, where.port)) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: policy._findings, "its likeness is looked for", every_s=0.01)
    wait_until(lambda: served.status()["under_way"] == 0, "it is over", every_s=0.01)
    policy.check_integrity()


def test_nothing_is_left_of_requests_that_are_over(fleet: Any) -> None:
    served = fleet(2)
    for seed in range(10):
        served.chat(document(seed % 4))
    learnt(served, 4)
    served.router.policy.check_integrity()
    assert all(each.in_flight == 0 and each.tokens_in_flight == 0 for each in served.router.backend.replicas)
    assert served.router.bodies.held == 0
    assert served.router.admission.under_way == 0
