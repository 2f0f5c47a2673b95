"""Request records of the embedded engine, from what it served."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sembench.embedded.server import ServedPrefill
from sembench.offline.blocks import collect_blocks, measure_blocks
from sembench.schema import ManifestItem, Quality, RequestRecord
from sembench.schema.result import Arm
from semblend_core import TokenIds


@dataclass(frozen=True)
class ScoredAnswer:
    """What was said behind a prompt, and how good it was. None where the arm's text was not asked for."""

    quality: Quality
    text: str | None = None
    tokens: int | None = None
    seconds: float | None = None
    """From the first token to the end of the answer."""


def make_record(
    item: ManifestItem, arm: Arm, served: ServedPrefill, times_s: Sequence[float], reply: ScoredAnswer
) -> RequestRecord:
    """One arm's record. ``times_s`` are its times to the first token, one per round."""
    ttft_ms = 1e3 * statistics.median(times_s)
    prefill = served.prefill
    return RequestRecord(
        item_id=item.item_id,
        arm=arm,
        dataset=item.dataset,
        transform=item.transform,
        negative_control=item.negative_control,
        request_id=f"{item.item_id}-{arm}",
        prompt_tokens=prefill.token_ids.size,
        exact_prefix_tokens=prefill.exact_prefix_tokens,
        computed_tokens=prefill.computed_tokens,
        ttft_ms=ttft_ms,
        ttft_samples_ms=[1e3 * seconds for seconds in times_s],
        latency_ms=None if reply.seconds is None else ttft_ms + 1e3 * reply.seconds,
        output_tokens=reply.tokens,
        output=reply.text,
        quality=reply.quality,
        **_proof(served, arm),
        **_reuse(served, arm),
    )


def add_block_counts(
    record: RequestRecord, served: ServedPrefill, donors: Sequence[TokenIds], block_size: int
) -> RequestRecord:
    """The record with the block metrics of what the provider proposed, whether or not it was carried out."""
    spans = served.found.plan.spans if served.found and served.found.plan else ()
    blocks = measure_blocks(served.prefill.token_ids, collect_blocks(donors, block_size), spans, block_size)
    counts = {
        "total_blocks": blocks.total,
        "exact_blocks": blocks.exact,
        "candidate_blocks": blocks.candidate,
        "eligible_blocks": blocks.eligible,
        "eligible_beyond_exact_blocks": blocks.eligible_beyond_exact,
    }
    return record.model_copy(update=counts)


def make_failed_records(item: ManifestItem, problem: str, prompt_tokens: int) -> list[RequestRecord]:
    """Both arms of a pair, for an item that the model cannot serve."""
    arms: tuple[Arm, ...] = ("cold", "warm")
    return [
        RequestRecord(
            item_id=item.item_id,
            arm=arm,
            dataset=item.dataset,
            transform=item.transform,
            negative_control=item.negative_control,
            status="error",
            error=problem,
            prompt_tokens=prompt_tokens,
        )
        for arm in arms
    ]


def _proof(served: ServedPrefill, arm: Arm) -> dict[str, Any]:
    if arm != "cold":
        return {}
    computed, total = served.prefill.computed_tokens, served.prefill.token_ids.size
    # A forward over all positions from 0 on attends to nothing that was there before it.
    return {
        "proved_cold": computed == total,
        "cold_proof": f"computed {computed} of {total} tokens, from position 0 on, in a new workspace",
    }


def _reuse(served: ServedPrefill, arm: Arm) -> dict[str, Any]:
    """What was planned and what the engine used. It reports every request, so that 0 is a finding here."""
    if arm != "warm" or served.found is None or served.outcome is None:
        return {"confirmed_tokens": served.prefill.reused_tokens} if arm == "probe" else {}
    plan, outcome = served.plan, served.outcome
    return {
        "advertised_tokens": plan.reused_tokens if plan else 0,
        "confirmed_tokens": served.prefill.reused_tokens,
        "spans": len(plan.spans) if plan else 0,
        "donors": len(plan.donor_ids) if plan else 0,
        "outcome": outcome.kind.value,
        "decline_reason": outcome.reason.value if outcome.reason else None,
        "lookup_us": served.found.elapsed_us,
        "policy": served.policy,
    }
