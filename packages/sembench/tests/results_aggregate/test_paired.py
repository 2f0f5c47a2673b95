"""Pairs: which are clean, why others are dropped, and what the clean ones say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sembench.results import build_result
from sembench.schema import ManifestItem, Paired, Quality, RequestRecord, RunIdentity

MakeItem = Callable[..., ManifestItem]
MakeRecord = Callable[..., RequestRecord]
COLD: dict[str, Any] = {"ttft_ms": 100.0, "proved_cold": True}


def paired(identity: RunIdentity, items: list[ManifestItem], records: list[RequestRecord]) -> Paired:
    result = build_result(identity, {}, items, records)
    assert result.paired is not None
    return result.paired


def test_figures_worked_out_by_hand(identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord) -> None:
    hits = [make_item(name) for name in ("a", "b")]
    miss = make_item("c")
    controls = [make_item(name, "negative_control") for name in ("d", "e", "f")]
    items = [*hits, miss, *controls]
    warm: list[dict[str, Any]] = [
        {"ttft_ms": 25.0, "advertised_tokens": 90, "confirmed_tokens": 80, "quality": Quality(rouge_l=0.6)},
        {"ttft_ms": 50.0, "advertised_tokens": 90, "confirmed_tokens": 90, "quality": Quality(rouge_l=0.8)},
        {"ttft_ms": 110.0, "advertised_tokens": 0, "confirmed_tokens": 0, "quality": Quality()},
        {"ttft_ms": 101.0, "advertised_tokens": 0, "confirmed_tokens": 0},
        {"ttft_ms": 102.0, "advertised_tokens": 0, "confirmed_tokens": 0},
        {"ttft_ms": 80.0, "advertised_tokens": None, "confirmed_tokens": 0},
    ]
    records = [make_record(item, "cold", **COLD, quality=Quality(rouge_l=0.9)) for item in items]
    records += [make_record(item, "warm", **figures) for item, figures in zip(items, warm, strict=True)]
    records += [make_record(hits[0], "exact", ttft_ms=10.0), make_record(controls[0], "exact", ttft_ms=5.0)]
    figures = paired(identity, items, records)

    assert (figures.clean_pairs, figures.dropped) == (6, {})
    blended, hit = figures.blended_ttft_speedup_median, figures.hit_ttft_speedup_median
    assert blended is not None
    assert hit is not None
    # Speedups 4, 2 and 100/110; of the hits alone 4 and 2.
    assert (blended.value, blended.n) == (2, 3)
    assert (hit.value, hit.n) == (3, 2)
    assert blended.low is not None
    assert blended.high is not None
    assert 100 / 110 <= blended.low <= 2 <= blended.high <= 4
    assert figures.hit_rate is not None
    assert (figures.hit_rate.numerator, figures.hit_rate.denominator) == (2, 3)
    control = figures.negative_control_ttft_speedup_median
    assert control is not None
    assert (control.value, control.n) == (pytest.approx(100 / 101), 3)
    # Nothing was advertised for the miss and for two controls: +10, +1, +2. Of the third control nothing is known.
    assert figures.miss_tax_ms is not None
    assert (figures.miss_tax_ms.value, figures.miss_tax_ms.n) == (2, 3)
    assert (figures.cold_ttft_ms_median, figures.warm_ttft_ms_median, figures.exact_ttft_ms_median) == (100, 50, 10)
    # ROUGE-L over the two pairs in which both arms were scored.
    assert figures.cold_rouge_l == pytest.approx(0.9)
    assert figures.warm_rouge_l == pytest.approx(0.7)


DIRTY: list[tuple[dict[str, Any] | None, dict[str, Any] | None, str]] = [
    (None, {"ttft_ms": 50}, "cold_missing"),
    (COLD, None, "warm_missing"),
    ({"status": "error", "error": "x"}, {"ttft_ms": 50}, "cold_failed"),
    (COLD, {"status": "error", "error": "x", "ttft_ms": 50}, "warm_failed"),
    ({"ttft_ms": 100}, {"ttft_ms": 50}, "cold_not_proved"),
    ({"ttft_ms": 100, "proved_cold": False}, {"ttft_ms": 50}, "cold_was_warm"),
    ({"ttft_ms": 100, "proved_cold": True, "confirmed_tokens": 64}, {"ttft_ms": 50}, "cold_was_warm"),
    ({"proved_cold": True}, {"ttft_ms": 50}, "cold_ttft_unknown"),
    (COLD, {}, "warm_ttft_unknown"),
    (COLD, {"ttft_ms": 0}, "ttft_not_positive"),
    (COLD, {"ttft_ms": 50, "prompt_tokens": 7, "confirmed_tokens": 100}, "more_reused_than_prompt"),
    (COLD, {"ttft_ms": 50, "prompt_tokens": 7, "engine_cached_tokens": 100}, "more_reused_than_prompt"),
]


@pytest.mark.parametrize(("cold", "warm", "reason"), DIRTY)
def test_a_pair_that_cannot_be_compared_is_dropped_for_its_reason(
    identity: RunIdentity,
    make_item: MakeItem,
    make_record: MakeRecord,
    cold: dict[str, Any] | None,
    warm: dict[str, Any] | None,
    reason: str,
) -> None:
    clean, dirty = make_item("clean"), make_item("dirty")
    records = [make_record(clean, "cold", **COLD), make_record(clean, "warm", ttft_ms=50)]
    if cold is not None:
        records.append(make_record(dirty, "cold", **cold))
    if warm is not None:
        records.append(make_record(dirty, "warm", **warm))
    figures = paired(identity, [clean, dirty], records)
    assert figures.clean_pairs == 1
    assert figures.dropped == {reason: 1}
    assert figures.blended_ttft_speedup_median is not None
    assert figures.blended_ttft_speedup_median.n == 1


def test_without_a_clean_pair_there_is_no_headline(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    item = make_item("a")
    records = [make_record(item, "cold", ttft_ms=100), make_record(item, "warm", ttft_ms=1, confirmed_tokens=9)]
    figures = paired(identity, [item], records)
    assert figures.model_dump(exclude_none=True) == {"clean_pairs": 0, "dropped": {"cold_not_proved": 1}}


def test_hits_need_confirmation(identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord) -> None:
    item = make_item("a")
    fast = make_record(item, "warm", ttft_ms=1, engine_cached_tokens=900, advertised_tokens=900)
    figures = paired(identity, [item], [make_record(item, "cold", **COLD), fast])
    assert figures.hit_rate is None
    assert figures.hit_ttft_speedup_median is None
    assert figures.miss_tax_ms is None
    assert figures.blended_ttft_speedup_median is not None


def test_every_item_is_in_a_clean_pair_or_dropped_in_each_transform(
    identity: RunIdentity, make_item: MakeItem, make_record: MakeRecord
) -> None:
    served, unserved = make_item("a", "rag_reorder"), make_item("b", "sparse_edit")
    records = [make_record(served, "cold", **COLD), make_record(served, "warm", ttft_ms=50)]
    result = build_result(identity, {}, [served, unserved], records)
    for name, dropped in (("rag_reorder", {}), ("sparse_edit", {"cold_missing": 1})):
        part = result.by_transform[name].paired
        assert part is not None
        assert part.dropped == dropped
