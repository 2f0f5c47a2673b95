"""One small prompt on the default model: what is true of random weights must be true of a real model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sembench.embedded.config import EmbeddedConfig
from sembench.embedded.runner import run_embedded
from sembench.manifests import build_synthetic
from sembench.schema import ManifestItem


def test_a_document_behind_a_new_instruction_is_reused_and_the_model_stays_close_to_cold(
    tmp_path: Path, write: Callable[[Path, Sequence[ManifestItem]], Path]
) -> None:
    items = build_synthetic(
        seed=7, domains=("support_tickets",), bands_tokens=(600,), transforms=("instruction_variant",)
    )
    config = EmbeddedConfig(repeats=1, continuation_tokens=24, max_output_tokens=8, noise_floor=False)
    result = run_embedded(write(tmp_path / "m.jsonl", items), tmp_path / "r.json", config)
    warm = next(record for record in result.requests if record.arm == "warm")
    assert warm.outcome == "materialized"
    assert (warm.confirmed_tokens or 0) > 0.6 * (warm.prompt_tokens or 0)
    # Random tokens of this vocabulary are 10 nats apart; KV placed at wrong positions costs more than 0.1.
    assert 0 < (warm.quality.kl_mean or 0) < 0.05
    rate = result.aggregate.propagation_contamination_rate
    assert rate is not None
    assert (rate.numerator, rate.denominator) == (0, 1)
