"""Two tensor-parallel ranks reuse what one rank reuses; what fails at one of them fails at both, and nobody waits."""

from __future__ import annotations

from typing import Any

import pytest
from programs import SEVERAL_RANKS, run_program
from running_engine import cached, divergence

from semblend_core.testing import write_split_model

CASES = ("new instruction", "passages of four requests")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program found, whose engines have processes of their own."""
    folder = tmp_path_factory.mktemp("ranks")
    model = write_split_model(folder / "model")
    return run_program("two_ranks", model, folder, **SEVERAL_RANKS)


def alike(ranks: list[dict[str, Any]]) -> bool:
    """Whether the books of all ranks are the same, and nothing is under way. Each has checked its own."""
    return all(rank == ranks[0] for rank in ranks) and (ranks[0]["requests"], ranks[0]["loads"]) == (0, 0)


def declined(fault: dict[str, Any], reason: str) -> int:
    before, after = fault["before"]["declines"], fault["between"]["declines"]
    return int(after.get(reason, 0)) - int(before.get(reason, 0))


def answers(found: dict[str, Any], ranks: str, case: str) -> dict[str, Any]:
    return dict(found[ranks]["answers"][case])


@pytest.mark.parametrize("case", CASES)
def test_without_reuse_they_answer_as_one(found: dict[str, Any], case: str) -> None:
    one, two = (answers(found, ranks, case)["cold"] for ranks in ("one", "two"))
    assert one["output_ids"] == two["output_ids"]
    assert divergence(one, two) < 1e-6


@pytest.mark.parametrize(("case", "most"), [(CASES[0], 1e-6), (CASES[1], 1e-3)])
def test_with_reuse_they_answer_as_one_does_with_it(found: dict[str, Any], case: str, most: float) -> None:
    """Where rows correct the rest of a span, each rank weighs them by its own heads: nearly the same."""
    one, two = (answers(found, ranks, case) for ranks in ("one", "two"))
    assert one["confirmed"] == two["confirmed"] > 0.6 * two["cold"]["meta_info"]["prompt_tokens"]
    assert cached(one["reused"]) == cached(two["reused"])
    assert one["reused"]["output_ids"] == two["reused"]["output_ids"]
    assert divergence(one["reused"], two["reused"]) < most


@pytest.mark.parametrize("case", CASES)
def test_nothing_approximate_is_found_as_exact(found: dict[str, Any], case: str) -> None:
    two = answers(found, "two", case)
    assert cached(two["off"]) < 0.1 * two["cold"]["meta_info"]["prompt_tokens"]
    assert two["off"]["output_ids"] == two["cold"]["output_ids"]
    assert divergence(two["cold"], two["off"]) < 1e-3


@pytest.mark.parametrize("case", CASES)
def test_another_tenant_is_served_of_nothing(found: dict[str, Any], case: str) -> None:
    assert cached(answers(found, "two", case)["other"]) == 0


def test_each_rank_has_its_heads_and_has_tested_itself(found: dict[str, Any]) -> None:
    assert [rank["heads"] for rank in found["one"]["ranks"]] == [4]
    assert [rank["heads"] for rank in found["two"]["ranks"]] == [2, 2]
    assert all(rank["proved"] for rank in found["two"]["ranks"])


def test_a_conversation_goes_on_from_what_was_served(found: dict[str, Any]) -> None:
    for turn in found["two"]["conversation"]:
        assert turn["prompt_tokens"] - turn["cached_tokens"] < 40, "the history is computed again"


def test_more_than_the_pool_can_hold_leaves_the_same_books_at_both(found: dict[str, Any]) -> None:
    assert found["two"]["crowd"]["answers"] == 10
    before, after = found["two"]["ranks"], found["two"]["crowd"]["ranks"]
    assert alike(before)
    assert alike(after)
    turnover = [rank["lineages"][-1] for rank in (before[0], after[0])]
    assert turnover[1] > turnover[0], "nothing was evicted"


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("lookup", "internal_error"),
        ("in_place", "internal_error"),
        ("sources", "load_failed"),
        ("move", "load_failed"),
    ],
)
def test_what_fails_at_one_rank_fails_at_both(found: dict[str, Any], what: str, reason: str) -> None:
    fault, cold = found["two"]["faults"][what], answers(found, "two", "passages of four requests")["cold"]
    assert fault["broken"]["output_ids"] == cold["output_ids"]
    assert divergence(cold, fault["broken"]) < 1e-3
    assert cached(fault["broken"]) == 0
    assert declined(fault, reason) == 1
    assert fault["between"]["confirmed"] == fault["before"]["confirmed"]
    assert fault["after"]["confirmed"] > fault["between"]["confirmed"], "they reuse no more afterwards"
    assert alike(fault["ranks"])


def test_a_probe_that_one_rank_cannot_see_chooses_nothing(found: dict[str, Any]) -> None:
    fault = found["two"]["faults"]["look"]
    assert fault["between"]["confirmed"] > fault["before"]["confirmed"], "its rows are those without a probe"
    assert alike(fault["ranks"])


def test_a_batch_that_one_rank_cannot_make_with_rows_ends_reuse_at_both(found: dict[str, Any]) -> None:
    fault, cold = found["two"]["rows"], answers(found, "two", "passages of four requests")["cold"]
    assert fault["broken"]["output_ids"] == cold["output_ids"]
    assert declined(fault, "internal_error") == 1
    assert fault["after"]["confirmed"] == fault["before"]["confirmed"]
    assert [rank["proved"] for rank in fault["ranks"]] == [False, False]
    assert alike(found["two"]["at_the_end"])


def test_a_purge_reaches_every_rank(found: dict[str, Any]) -> None:
    kept = found["kept"]
    assert [rank["stored"] for rank in kept["before_purge"]] == [1, 1]
    assert kept["purge"]["verified"]
    assert [rank["stored"] for rank in kept["after_purge"]] == [0, 0]
    assert sorted(name.rsplit("-", 1)[0] for name in kept["purge"]["engines"]) == ["scheduler", "worker-1"]


def test_what_one_rank_cannot_keep_is_kept_by_none(found: dict[str, Any]) -> None:
    assert [rank["stored"] for rank in found["kept"]["capture"]] == [0, 0]


def test_each_rank_has_files_of_its_own(found: dict[str, Any]) -> None:
    for files in found["kept"]["files"].values():
        assert [file.split("/")[0] for file in files] == ["rank-0", "rank-1"]


def test_what_lies_whole_at_both_is_reused_after_a_restart(found: dict[str, Any]) -> None:
    whole = found["restart"]["whole"]
    confirmed = whole["after"]["confirmed"] - whole["before"]["confirmed"]
    assert confirmed > 0.7 * whole["cold"]["meta_info"]["prompt_tokens"]
    assert whole["asked"]["output_ids"] == whole["cold"]["output_ids"]


def test_what_one_rank_has_lost_is_not(found: dict[str, Any]) -> None:
    torn = found["restart"]["torn"]
    assert torn["after"]["confirmed"] == torn["before"]["confirmed"]
    assert torn["after"]["declines"].get("no_spans", 0) == torn["before"]["declines"].get("no_spans", 0) + 1
    assert torn["asked"]["output_ids"] == torn["cold"]["output_ids"]
