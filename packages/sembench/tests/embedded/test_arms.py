"""What each arm is, on the real reference engine with the real provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sembench.embedded.config import EmbeddedConfig
from sembench.embedded.runner import run_embedded
from sembench.embedded.server import ServedPrefill, Server, round_down_to_blocks
from sembench.schema import ManifestItem, RequestRecord, Result
from sembench.schema.result import Arm

ROUNDING = 1e-5


def replay(manifest: Path, model: Path, tmp_path: Path, **options: Any) -> Result:
    config = EmbeddedConfig(model=str(model), **({"repeats": 1, "continuation_tokens": 16} | options))
    return run_embedded(manifest, tmp_path / "result.json", config)


def find(result: Result, transform: str, arm: Arm) -> RequestRecord:
    (record,) = [each for each in result.requests if each.transform == transform and each.arm == arm]
    return record


@pytest.fixture(scope="module")
def result(
    items: list[ManifestItem],
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    write: Callable[[Path, Sequence[ManifestItem]], Path],
) -> Result:
    folder = tmp_path_factory.mktemp("replay")
    return replay(write(folder / "manifest.jsonl", items), tiny_model, folder, repeats=3)


def test_every_token_is_exact_confirmed_or_computed(result: Result) -> None:
    served = [record for record in result.requests if record.status == "ok"]
    assert {record.arm for record in served} == {"cold", "exact", "warm", "probe"}
    for record in served:
        parts = (record.exact_prefix_tokens, record.confirmed_tokens or 0, record.computed_tokens)
        assert sum(part for part in parts if part is not None) == record.prompt_tokens, record


def test_a_changed_prompt_reuses_and_recomputed_tokens_are_not_counted_as_reused(result: Result) -> None:
    for transform, donors in (("instruction_variant", 1), ("multi_donor_composite", 3)):
        warm = find(result, transform, "warm")
        assert warm.outcome == "materialized"
        assert warm.donors == donors
        assert 0 < (warm.confirmed_tokens or 0) < (warm.advertised_tokens or 0)
        assert warm.confirmed_blocks == (warm.confirmed_tokens or 0) // 16
    assert result.aggregate.materialized_reuse_rate is not None
    assert 0 < (result.aggregate.materialized_reuse_rate.value or 0) < 1


def test_a_repeated_prompt_is_left_to_the_prefix_cache(result: Result) -> None:
    warm = find(result, "exact_repeat", "warm")
    assert warm.outcome == "exact_prefix"
    assert warm.confirmed_tokens == 0
    assert warm.exact_prefix_tokens == round_down_to_blocks((warm.prompt_tokens or 0) - 1, 16)


def test_the_exact_arm_computes_no_more_than_one_block_and_agrees_with_cold(result: Result) -> None:
    exact = find(result, "instruction_variant", "exact")
    assert 1 <= (exact.computed_tokens or 0) <= 16
    assert (exact.quality.kl_max or 0) < ROUNDING


def test_a_negative_control_stays_cold_and_says_why(result: Result) -> None:
    warm = find(result, "negative_control", "warm")
    assert (warm.outcome, warm.decline_reason) == ("declined", "no_spans")
    assert (warm.advertised_tokens, warm.confirmed_tokens) == (0, 0)
    assert warm.output == find(result, "negative_control", "cold").output
    assert (warm.quality.kl_max or 0) < ROUNDING


def test_the_cold_arm_is_proved_cold(result: Result) -> None:
    for record in result.requests:
        if record.arm == "cold" and record.status == "ok":
            assert record.proved_cold is True
            assert record.computed_tokens == record.prompt_tokens
            assert str(record.prompt_tokens) in (record.cold_proof or "")


def test_answers_are_scored_where_the_manifest_has_some(result: Result) -> None:
    assert find(result, "exact_repeat", "warm").quality.f1 is not None
    assert find(result, "instruction_variant", "warm").quality.f1 is None
    assert find(result, "instruction_variant", "warm").quality.cold_rouge_l is not None


def test_all_rounds_are_reported_and_the_median_is_the_figure(result: Result) -> None:
    for arm in ("cold", "exact", "warm"):
        record = find(result, "instruction_variant", arm)  # type: ignore[arg-type]
        assert len(record.ttft_samples_ms or []) == 3
        assert record.ttft_ms == sorted(record.ttft_samples_ms or [])[1]


def test_an_item_that_does_not_fit_the_model_is_an_error_and_the_others_run(result: Result) -> None:
    failed = [record for record in result.requests if record.status == "error"]
    assert {(record.transform, record.arm) for record in failed} == {("fuzzy_edit", "cold"), ("fuzzy_edit", "warm")}
    assert "16384" in (failed[0].error or "")
    assert result.aggregate.requests_ok == 4


def test_the_noise_floor_is_rounding(result: Result) -> None:
    assert result.paired is not None
    floor = result.paired.noise_floor or {}
    assert floor["n"] == 4
    assert 0 <= (floor["kl_max"] or 0) < ROUNDING
    assert floor["top1"] == 1.0


def test_a_prompt_that_was_served_with_reuse_equals_cold_when_it_comes_again_without(result: Result) -> None:
    rate = result.aggregate.propagation_contamination_rate
    assert rate is not None
    assert (rate.numerator, rate.denominator) == (0, 2)
    probe = find(result, "instruction_variant", "probe")
    assert (probe.quality.kl_max or 0) < ROUNDING
    assert probe.confirmed_tokens == 0


def test_the_probe_notices_an_engine_that_publishes_relocated_kv(
    manifest: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish_everything(server: Server, served: ServedPrefill) -> None:
        tokens, workspace = served.prefill.token_ids, served.prefill.workspace
        server._cache_of(server._namespace).publish(
            tokens, server._engine.capture(workspace, tokens.size, approximate=True)
        )

    monkeypatch.setattr(Server, "publish", publish_everything)
    rate = replay(manifest, tiny_model, tmp_path).aggregate.propagation_contamination_rate
    assert rate is not None
    assert rate.numerator == 2


def test_recomputing_everything_equals_cold_and_is_no_reuse(manifest: Path, tiny_model: Path, tmp_path: Path) -> None:
    warm = find(replay(manifest, tiny_model, tmp_path, policy="full_recompute"), "multi_donor_composite", "warm")
    assert (warm.confirmed_tokens, warm.outcome) == (0, "declined")
    assert (warm.advertised_tokens or 0) > 0
    assert (warm.quality.kl_max or 0) < ROUNDING


def test_rotating_only_uses_all_that_was_advertised_and_strays(
    manifest: Path, tiny_model: Path, tmp_path: Path
) -> None:
    warm = find(replay(manifest, tiny_model, tmp_path, policy="rotate_only"), "multi_donor_composite", "warm")
    assert warm.policy == "rotate_only"
    assert warm.confirmed_tokens == warm.advertised_tokens
    assert (warm.quality.kl_mean or 0) > 100 * ROUNDING


def test_the_strict_tier_declines_a_prompt_from_several_places(
    manifest: Path, tiny_model: Path, tmp_path: Path
) -> None:
    result = replay(manifest, tiny_model, tmp_path, tier="strict")
    warm = find(result, "multi_donor_composite", "warm")
    assert (warm.outcome, warm.decline_reason, warm.confirmed_tokens) == ("declined", "quality_tier", 0)
    assert find(result, "instruction_variant", "warm").outcome == "materialized"


def test_a_budget_replaces_the_tiers(manifest: Path, tiny_model: Path, tmp_path: Path) -> None:
    def share(budget: float) -> float:
        warm = find(replay(manifest, tiny_model, tmp_path, budget=budget), "multi_donor_composite", "warm")
        return 1 - (warm.confirmed_tokens or 0) / (warm.advertised_tokens or 1)

    small, large = share(0.1), share(0.5)
    assert small <= 0.1 < large <= 0.5


def test_arms_that_are_not_asked_for_are_not_there(manifest: Path, tiny_model: Path, tmp_path: Path) -> None:
    result = replay(manifest, tiny_model, tmp_path, exact=False, probe=False, noise_floor=False, max_items=2)
    assert {record.arm for record in result.requests} == {"cold", "warm"}
    assert result.paired is not None
    assert result.paired.noise_floor is None
    assert result.paired.exact_ttft_ms_median is None
    assert result.aggregate.propagation_contamination_rate is None
