"""A decision from finding to worker. Dynamo's index is stood in for by a table; the real one is in tests/engine."""

import asyncio
from typing import Any

import numpy as np
import pytest

from semblend_core import Settings, TokenIds, as_token_ids
from semblend_dynamo.dynamo.deciding import Decider, Verdict
from semblend_dynamo.dynamo.likeness import Likeness
from semblend_dynamo.dynamo.requests import RequestReader, RoutedRequest
from semblend_dynamo.dynamo.residency import Residency, WorkerRank
from semblend_dynamo.evidence import open_evidence
from semblend_dynamo.placement import Account, DonorBook, PlacementSettings, Reason
from semblend_dynamo.settings import EvidenceSettings

BLOCK = 16
READER = RequestReader("model", BLOCK)
PASSAGES = [np.random.default_rng(n).integers(0, 30_000, 320) for n in range(4)]


class Table:
    """Workers and the prompts whose blocks they hold."""

    def __init__(self, held: dict[int, list[TokenIds]], loads: dict[int, int] | None = None) -> None:
        self.held = held
        self.loads = loads or {}
        self.asked_about: list[list[int]] = []
        self.hashed_with: list[Any] = []

    async def get_overlap_scores(self, token_ids: list[int], **options: Any) -> dict[str, Any]:
        self.asked_about.append(token_ids)
        self.hashed_with.append((options["cache_namespace"], options["lora_name"]))
        return {
            "workers": [
                {
                    "worker_id": worker,
                    "dp_rank": 0,
                    "device_blocks": max((self._shared(token_ids, prompt) for prompt in prompts), default=0),
                    "host_pinned_blocks": 0,
                    "disk_blocks": 0,
                }
                for worker, prompts in self.held.items()
            ]
        }

    async def get_potential_loads(self, token_ids: list[int], **options: Any) -> list[dict[str, int]]:
        return [
            {
                "worker_id": worker,
                "dp_rank": 0,
                "potential_prefill_tokens": len(token_ids)
                - BLOCK * max((self._shared(token_ids, prompt) for prompt in prompts), default=0)
                + self.loads.get(worker, 0),
                "potential_decode_blocks": 0,
            }
            for worker, prompts in self.held.items()
        ]

    @staticmethod
    def _shared(tokens: list[int], prompt: TokenIds) -> int:
        blocks = min(len(tokens), prompt.size) // BLOCK
        a, b = np.array(tokens[: blocks * BLOCK]), prompt[: blocks * BLOCK]
        differ = np.flatnonzero(a != b)
        return blocks if differ.size == 0 else int(differ[0]) // BLOCK


def prompt(*parts: Any) -> TokenIds:
    return as_token_ids(np.concatenate([np.asarray(part) for part in parts]))


def frame(number: int) -> Any:
    return np.random.default_rng(900 + number).integers(0, 30_000, 40)


def request(tokens: TokenIds, name: str = "r") -> RoutedRequest:
    return READER.read(name, {"token_ids": tokens.tolist(), "routing": {"cache_salt": "tenant", "lora_name": None}})


def book_of(*donors: TokenIds) -> DonorBook:
    book = DonorBook(Settings(lookup_budget_ms=600_000))
    for number, tokens in enumerate(donors):
        assert book.add(READER.namespace("tenant", None), f"donor-{number}", tokens).kept
    return book


def decide(
    book: DonorBook,
    table: Table,
    tokens: TokenIds,
    live: set[int] | None = None,
    evidence: Likeness | None = None,
    **settings: Any,
) -> Verdict:
    residency = Residency(table, lambda: table.held if live is None else live, BLOCK)
    decider = Decider(book, residency, PlacementSettings(**settings), evidence)
    return asyncio.run(decider.decide(request(tokens)))


def test_the_worker_that_holds_the_donor_now_is_named() -> None:
    donor = prompt(frame(0), PASSAGES[0])
    table = Table({1: [], 2: [donor], 3: []})
    verdict = decide(book_of(donor), table, prompt(frame(1), PASSAGES[0]))
    assert verdict.decision.worker == WorkerRank(2, 0)
    assert verdict.on(WorkerRank(2, 0)) > 300
    assert verdict.on(WorkerRank(1, 0)) == 0
    assert set(table.hashed_with) == {("tenant", None)}, "blocks are hashed as the tenant's"


def test_nothing_is_left_of_a_decision_that_failed() -> None:
    class Broken(Table):
        async def get_overlap_scores(self, token_ids: list[int], **options: Any) -> dict[str, Any]:
            raise RuntimeError("no index")

    book = book_of(prompt(frame(1), PASSAGES[0]))
    with pytest.raises(RuntimeError, match="no index"):
        decide(book, Broken({1: []}), prompt(frame(2), PASSAGES[0]))
    assert book.provider.stats().pinned_requests == 0


def test_a_worker_that_discovery_no_longer_lists_is_not_named() -> None:
    donor = prompt(frame(0), PASSAGES[0])
    verdict = decide(book_of(donor), Table({1: [], 2: [donor]}), prompt(frame(1), PASSAGES[0]), live={1})
    assert verdict.decision.reason is Reason.NOT_RESIDENT


def test_an_exact_prefix_is_taken_off_and_wins() -> None:
    donor, asked = prompt(frame(0), PASSAGES[0]), prompt(frame(1), PASSAGES[0])
    verdict = decide(book_of(donor), Table({1: [asked], 2: [donor]}), asked)
    assert verdict.decision.reason is Reason.EXACT_WINS
    assert verdict.exact_tokens[WorkerRank(1, 0)] >= 352


def test_load_counts() -> None:
    donor = prompt(frame(0), PASSAGES[0])
    table = Table({1: [], 2: [donor]}, loads={2: 5000})
    assert decide(book_of(donor), table, prompt(frame(1), PASSAGES[0])).decision.reason is Reason.BUSY


def test_donors_are_asked_about_up_to_the_limit_and_no_further_than_needed() -> None:
    donors = [prompt(frame(n), PASSAGES[n], frame(n + 10)) for n in range(4)]
    asked = prompt(frame(20), *PASSAGES)
    for limit in (1, 3):
        table = Table({1: [], 2: donors})
        decide(book_of(*donors), table, asked, donors=limit)
        about_donors = [tokens for tokens in table.asked_about if tokens != asked.tolist()]
        assert len(about_donors) == limit
        assert {len(tokens) for tokens in about_donors} <= set(range(355, 362)), "the passage's end, not the donor's"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"min_tokens": 400}, Reason.TOO_LITTLE),
        ({"margin_tokens": 300}, Reason.WITHIN_MARGIN),
        ({"credit": 0.1}, Reason.WITHIN_MARGIN),
        ({}, Reason.SPANS),
    ],
)
def test_settings_of_the_rule_hold(settings: dict[str, Any], reason: Reason) -> None:
    donor = prompt(frame(0), PASSAGES[0])
    table = Table({1: [], 2: [donor]})
    assert decide(book_of(donor), table, prompt(frame(1), PASSAGES[0]), **settings).decision.reason is reason


def likeness_of(donor: TokenIds, account: Account, wait_ms: float, **settings: Any) -> Likeness:
    evidence = open_evidence(EvidenceSettings(embedder="jaccard", **settings))
    assert evidence is not None
    made = Likeness(evidence, account, wait_ms=wait_ms, detokenize=None)
    made.offer(READER.namespace("tenant", None), "donor-0", donor)
    evidence.wait_idle(60)
    return made


def alike(donor: TokenIds) -> TokenIds:
    """Every fortieth token is another: no run of 64 is left."""
    tokens = donor.copy()
    tokens[::40] = 31_000
    return as_token_ids(tokens)


def test_without_spans_likeness_decides_and_is_counted() -> None:
    donor = prompt(frame(0), PASSAGES[0])
    table, account = Table({1: [], 2: [donor], 3: []}), Account()
    likeness = likeness_of(donor, account, 60_000)
    verdict = decide(book_of(donor), table, alike(donor), evidence=likeness, likeness=0.1)
    assert (verdict.decision.worker, verdict.decision.reason) == (WorkerRank(2, 0), Reason.LIKENESS)
    assert account.report()["events"] == {"likeness_asked": 1, "likeness_found": 1}
    likeness.close()


def test_a_likeness_below_the_least_similarity_is_none() -> None:
    donor = prompt(frame(0), PASSAGES[0])
    account = Account()
    likeness = likeness_of(donor, account, 60_000, min_similarity=0.99)
    verdict = decide(book_of(donor), Table({2: [donor]}), alike(donor), evidence=likeness, likeness=0.1)
    assert verdict.decision.reason is Reason.NO_FINDING
    assert account.report()["events"] == {"likeness_asked": 1, "likeness_none": 1}
    likeness.close()


def test_likeness_that_is_worth_nothing_is_not_asked_for() -> None:
    donor = prompt(frame(0), PASSAGES[0])
    account = Account()
    likeness = likeness_of(donor, account, 60_000)
    verdict = decide(book_of(donor), Table({2: [donor]}), alike(donor), evidence=likeness, likeness=0.0)
    assert verdict.decision.reason is Reason.NO_FINDING
    assert account.report()["events"] == {}
    likeness.close()


def test_a_prompt_with_spans_never_asks_for_likeness() -> None:
    donor = prompt(frame(0), PASSAGES[0])
    account = Account()
    likeness = likeness_of(donor, account, 60_000)
    table = Table({1: [], 2: [donor]})
    assert decide(book_of(donor), table, prompt(frame(1), PASSAGES[0]), evidence=likeness, likeness=0.1).decision.worker
    assert account.report()["events"] == {}
    likeness.close()


def test_who_always_waits_in_vain_no_longer_waits() -> None:
    """An embedder that never answers, such as MiniLM on a busy CPU."""

    class Never:
        def ask(self, *arguments: Any) -> bool:
            return True

        def poll(self, request_id: str) -> None:
            return None

    account = Account()
    likeness = Likeness(Never(), account, wait_ms=20, detokenize=None)  # type: ignore[arg-type]

    async def scenario() -> list[bool]:
        loop = asyncio.get_running_loop()
        waited = []
        for _ in range(12):
            begun = loop.time()
            await likeness.of(request(prompt(frame(0))))
            waited.append(loop.time() - begun >= 0.02)
        return waited

    assert asyncio.run(scenario())[:8] == [True] * 8
    assert account.report()["events"] == {"likeness_asked": 12, "likeness_late": 12}
    assert likeness.waits is False
