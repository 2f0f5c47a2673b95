"""Two tensor-parallel ranks reuse what one rank reuses; what fails at one of them fails at both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

DOCUMENTS = ("one document", "four documents")
Divergence = Callable[[Any, Any], float]


def asked(two_ranks: dict[str, Any], ranks: str, documents: str) -> dict[str, Any]:
    return dict(two_ranks[ranks]["answers"][documents])


def declined(fault: dict[str, Any], reason: str) -> int:
    before, after = fault["before"]["declines"], fault["between"]["declines"]
    return int(after.get(reason, 0)) - int(before.get(reason, 0))


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_without_reuse_they_answer_as_one(
    two_ranks: dict[str, Any], documents: str, divergence: Divergence, answer: Any
) -> None:
    one, two = (answer(asked(two_ranks, ranks, documents)["cold"]) for ranks in ("one", "two"))
    assert one.tokens == two.tokens
    assert divergence(one, two) < 1e-6


@pytest.mark.parametrize(("documents", "most"), [("one document", 1e-6), ("four documents", 1e-3)])
def test_with_reuse_they_answer_as_one_does_with_it(
    two_ranks: dict[str, Any], documents: str, most: float, divergence: Divergence, answer: Any
) -> None:
    """Where rows correct the rest of a span, each rank weighs them by its own heads: nearly the same."""
    one, two = (asked(two_ranks, ranks, documents) for ranks in ("one", "two"))
    assert one["confirmed"] == two["confirmed"] > 0.5 * two["cold"]["prompt_tokens"]
    reused_by_one, reused = answer(one["reused"]), answer(two["reused"])
    assert reused.cached_tokens == reused_by_one.cached_tokens
    assert reused.tokens[0] == reused_by_one.tokens[0]
    assert divergence(reused_by_one, reused) < most


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_nothing_approximate_is_found_as_exact(two_ranks: dict[str, Any], documents: str) -> None:
    two = asked(two_ranks, "two", documents)
    assert two["off"]["cached_tokens"] == 0
    assert two["off"]["tokens"] == two["cold"]["tokens"]
    assert two["off"]["logprobs"] == two["cold"]["logprobs"]


def test_each_rank_keeps_its_heads(two_ranks: dict[str, Any], disk: Path) -> None:
    (one,) = two_ranks["one"]["ranks"]
    ranks = sorted(two_ranks["two"]["ranks"], key=lambda rank: int(rank["rank"]))
    assert [rank["kv_heads"] for rank in ranks] == [2, 2]
    assert one["kv_heads"] == 4
    assert ranks[0]["stored"] == ranks[1]["stored"] == one["stored"] == 5
    whole = load_file(disk / "one" / "rank-0.safetensors")
    for rank in (0, 1):
        own = load_file(disk / "two" / f"rank-{rank}.safetensors")
        for part in ("keys", "values"):
            heads = whole[part][:, :, 2 * rank : 2 * rank + 2]
            assert float((own[part] - heads).abs().max()) < 1e-3
            assert float(heads.abs().max()) > 1
    assert sorted(folder.name for folder in (disk / "disk").iterdir()) == ["rank-0", "rank-1"]


def test_every_rank_tests_itself(two_ranks: dict[str, Any]) -> None:
    assert two_ranks["two"]["proved"]


def test_one_rank_that_fails_its_self_test_ends_reuse(two_ranks: dict[str, Any]) -> None:
    found = two_ranks["self_test"]
    assert found["ranks"] == {"0": "passed", "1": "failed"}
    assert found["after"]["confirmed"] == found["before"]["confirmed"]
    assert found["after"]["outcomes"]["discovery_only"] == found["before"]["outcomes"].get("discovery_only", 0) + 1
    assert found["after"]["declines"]["self_test_failed"] == 1
    assert found["answer"]["tokens"] == found["cold"]["tokens"]


@pytest.mark.parametrize(
    ("what", "reason"), [("scatter", "load_failed"), ("acquire", "donor_evicted"), ("correction", "load_failed")]
)
def test_what_fails_at_one_rank_fails_at_both(two_ranks: dict[str, Any], what: str, reason: str) -> None:
    """The correction fails a step after the load has landed, and nothing was counted by then."""
    fault, cold = two_ranks[what], asked(two_ranks, "two", "four documents")["cold"]
    assert fault["broken"]["tokens"] == cold["tokens"]
    assert fault["broken"]["logprobs"] == cold["logprobs"]
    assert fault["broken"]["cached_tokens"] == 0
    assert declined(fault, reason) == 1
    assert fault["between"]["confirmed"] == fault["before"]["confirmed"]


@pytest.mark.parametrize("what", ["scatter", "acquire", "correction", "keys_at"])
def test_they_reuse_again_afterwards(two_ranks: dict[str, Any], what: str) -> None:
    assert two_ranks[what]["after"]["confirmed"] > two_ranks[what]["between"]["confirmed"]


def test_a_probe_that_one_rank_cannot_see_chooses_nothing(two_ranks: dict[str, Any]) -> None:
    assert two_ranks["two"]["counted"]["probes"] == {"chose": 1}
    fault = two_ranks["keys_at"]
    assert fault["between"]["probes"]["failed"] == fault["before"]["probes"].get("failed", 0) + 1
    assert fault["between"]["confirmed"] > fault["before"]["confirmed"], "its rows are those without a probe"


def test_a_prompt_that_one_rank_cannot_keep_is_kept_by_none(two_ranks: dict[str, Any]) -> None:
    found = two_ranks["capture"]
    assert found["after"]["donors"] == found["before"]["donors"]
    assert [rank["stored"] for rank in found["ranks"]] == [0, 0]


def test_a_purge_reaches_every_rank(two_ranks: dict[str, Any]) -> None:
    assert [rank["stored"] for rank in two_ranks["purge"]["before"]] == [1, 1]
    assert [(rank["stored"], rank["bytes"]) for rank in two_ranks["purge"]["after"]] == [(0, 0), (0, 0)]
