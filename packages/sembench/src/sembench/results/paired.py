"""Cold against warm, item by item: only pairs that can be compared, and a count of those that cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sembench.results.records import Records, confirmed_tokens
from sembench.schema import Paired, Rate, RequestRecord
from sembench.statistics import bootstrap_median, mean, median


@dataclass(frozen=True, slots=True)
class CleanPair:
    """A clean pair: both arms succeeded, both times are known, and the cold arm is proved cold."""

    cold: RequestRecord
    warm: RequestRecord
    cold_ttft_ms: float
    warm_ttft_ms: float

    @property
    def speedup(self) -> float:
        return self.cold_ttft_ms / self.warm_ttft_ms

    @property
    def is_hit(self) -> bool:
        """The backend confirmed that donor KV landed."""
        return (confirmed_tokens(self.warm) or 0) > 0

    @property
    def is_miss(self) -> bool:
        """Confirmed that none did, and the engine's own prefix cache had no more of the prompt than in the cold arm.

        What an exact prefix serves is fast without any reuse: counted as a miss, it would make misses look free.
        """
        return confirmed_tokens(self.warm) == 0 and not self.is_exact

    @property
    def is_exact(self) -> bool:
        """Confirmed that no donor KV landed, and the engine's own prefix cache had a part of the prompt."""
        cached = (self.warm.engine_cached_tokens or 0) - (self.cold.engine_cached_tokens or 0)
        return confirmed_tokens(self.warm) == 0 and cached > 0


def pair_up(served: Records) -> Paired:
    """All paired figures. Every item is in a clean pair or in ``dropped``, under the first reason that holds.

    Negative controls are in ``clean_pairs``, in their own speedup and in the miss tax, and in nothing else.
    ``hit_rate`` is over the pairs of the headline; a pair of which nothing is known to be confirmed is no hit.
    """
    pairs, dropped = find_clean_pairs(served)
    controls = [pair for pair in pairs if pair.cold.negative_control]
    blended = [pair for pair in pairs if not pair.cold.negative_control]
    hits = [pair for pair in blended if pair.is_hit]
    measured = any(confirmed_tokens(pair.warm) is not None for pair in blended)
    tax = [pair.warm_ttft_ms - pair.cold_ttft_ms for pair in pairs if pair.warm.advertised_tokens == 0]
    cold_rouge, warm_rouge = _rouge_of_both(blended)
    return Paired(
        clean_pairs=len(pairs),
        dropped=dropped,
        cold_ttft_ms_median=median([pair.cold_ttft_ms for pair in blended]),
        warm_ttft_ms_median=median([pair.warm_ttft_ms for pair in blended]),
        exact_ttft_ms_median=median(_exact_times(served, blended)),
        blended_ttft_speedup_median=bootstrap_median([pair.speedup for pair in blended]) if blended else None,
        hit_ttft_speedup_median=bootstrap_median([pair.speedup for pair in hits]) if hits else None,
        hit_rate=Rate.of(len(hits), len(blended)) if measured else None,
        negative_control_ttft_speedup_median=bootstrap_median([p.speedup for p in controls]) if controls else None,
        miss_tax_ms=bootstrap_median(tax) if tax else None,
        warm_rouge_l=warm_rouge,
        cold_rouge_l=cold_rouge,
    )


def find_clean_pairs(served: Records) -> tuple[list[CleanPair], dict[str, int]]:
    """The clean pairs in the manifest's order, and why the other items have none."""
    pairs: list[CleanPair] = []
    dropped: Counter[str] = Counter()
    for item in served.items:
        pair = _pair_or_reason(served.find("cold", item.item_id), served.find("warm", item.item_id))
        if isinstance(pair, CleanPair):
            pairs.append(pair)
        else:
            dropped[pair] += 1
    return pairs, dict(dropped)


def _pair_or_reason(cold: RequestRecord | None, warm: RequestRecord | None) -> CleanPair | str:
    if cold is None:
        return "cold_missing"
    if warm is None:
        return "warm_missing"
    if cold.status != "ok":
        return "cold_failed"
    if warm.status != "ok":
        return "warm_failed"
    if (cold.confirmed_tokens or 0) > 0:
        return "cold_was_warm"  # Whatever the engine's own counter says: the backend loaded something.
    if not cold.proved_cold:
        return "cold_not_proved" if cold.proved_cold is None else "cold_was_warm"
    if cold.ttft_ms is None:
        return "cold_ttft_unknown"
    if warm.ttft_ms is None:
        return "warm_ttft_unknown"
    if cold.ttft_ms <= 0 or warm.ttft_ms <= 0:
        return "ttft_not_positive"
    if _is_impossible(cold) or _is_impossible(warm):
        return "more_reused_than_prompt"
    return CleanPair(cold, warm, cold.ttft_ms, warm.ttft_ms)


def _is_impossible(record: RequestRecord) -> bool:
    """Counts of which one must be wrong: nobody can say which, so neither is a figure."""
    if record.prompt_tokens is None:
        return False
    return max(record.confirmed_tokens or 0, record.engine_cached_tokens or 0) > record.prompt_tokens


def _exact_times(served: Records, pairs: Sequence[CleanPair]) -> list[float]:
    """Times of the exact arm for the items of the pairs, so that all three medians are of the same prompts."""
    records = [served.find("exact", pair.cold.item_id) for pair in pairs]
    return [record.ttft_ms for record in records if record and record.status == "ok" and record.ttft_ms is not None]


def _rouge_of_both(pairs: Sequence[CleanPair]) -> tuple[float | None, float | None]:
    """Mean ROUGE-L against the accepted answers, cold and warm, over pairs in which both were scored."""
    both = [(pair.cold.quality.rouge_l, pair.warm.quality.rouge_l) for pair in pairs]
    scored = [(cold, warm) for cold, warm in both if cold is not None and warm is not None]
    return mean(cold for cold, _ in scored), mean(warm for _, warm in scored)
