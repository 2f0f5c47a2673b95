"""The rates that two snapshots give, each with its numerator and denominator."""

from __future__ import annotations

from collections.abc import Iterable

from sembench.schema import Rate

Delta = tuple[str, dict[str, str], float | None]

_RATES = (
    ("vllm_external_prefix_cache_hit_rate", "vllm:external_prefix_cache_hits", "vllm:external_prefix_cache_queries"),
    ("vllm_prefix_cache_hit_rate", "vllm:prefix_cache_hits", "vllm:prefix_cache_queries"),
    ("vllm_ttft_seconds_mean", "vllm:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_count"),
    ("sglang_cached_token_rate", "sglang:cached_tokens", "sglang:prompt_tokens"),
    ("sglang_ttft_seconds_mean", "sglang:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_count"),
    ("semblend_plan_rate", "semblend_plans", "semblend_lookups"),
    ("semblend_lookup_seconds_mean", "semblend_lookup_seconds_sum", "semblend_lookup_seconds_count"),
)
"""Name, numerator, denominator. Counters are named without ``_total``, which exporters may leave away."""
_SHARES = (
    ("vllm:prompt_tokens_by_source", "source", "vllm_prompt_tokens_from"),
    ("semblend_outcomes", "kind", "semblend_outcome"),
)
"""Family, the label that divides it, and what its shares are called."""
_DIVIDED = {
    "vllm:prompt_tokens_by_source": "source",
    "sglang:cached_tokens": "cache_source",
    "semblend_declines": "reason",
    "semblend_outcomes": "kind",
    "semblend_audit_dropped": "cause",
}
_KEPT = (
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:num_preemptions",
    "sglang:generation_tokens",
    "sglang:num_requests",
    "semblend_confirmed_tokens",
    "semblend_evicted_donors",
    "semblend_audit_records",
    "semblend_scrape_errors",
)


class _Sums:
    """Deltas added up by family, and by label value where a family is divided. One reset makes its sum None."""

    def __init__(self, deltas: Iterable[Delta]) -> None:
        self.by_family: dict[str, float | None] = {}
        self.by_value: dict[str, dict[str, float | None]] = {}
        for name, labels, delta in deltas:
            family = name.removesuffix("_total")
            self.by_family[family] = _added(self.by_family.get(family, 0.0), delta)
            label = _DIVIDED.get(family)
            if label is not None:
                parts = self.by_value.setdefault(family, {})
                value = labels.get(label, "unlabelled")
                parts[value] = _added(parts.get(value, 0.0), delta)


def derived_rates(deltas: Iterable[Delta]) -> tuple[dict[str, float | None], dict[str, Rate], list[str]]:
    """Totals of the counters that matter here, rates of those that are there, and remarks on how to read them."""
    sums = _Sums(deltas)
    wanted = {*_KEPT, *_DIVIDED, *(name for _, *both in _RATES for name in both)}
    totals = {name: total for name, total in sums.by_family.items() if name in wanted}
    for family, parts in sums.by_value.items():
        totals |= {f"{family}{{{_DIVIDED[family]}={value}}}": total for value, total in sorted(parts.items())}
    rates = {
        name: Rate.of(sums.by_family[numerator], sums.by_family[denominator])
        for name, numerator, denominator in _RATES
        if numerator in sums.by_family and denominator in sums.by_family
    }
    for family, _, prefix in _SHARES:
        whole = sums.by_family.get(family)
        shares = sorted(sums.by_value.get(family, {}).items())
        rates |= {f"{prefix}_{value}": Rate.of(part, whole) for value, part in shares}
    return totals, rates, _remarks(sums)


def _added(total: float | None, delta: float | None) -> float | None:
    return None if total is None or delta is None else total + delta


def _remarks(sums: _Sums) -> list[str]:
    remarks = []
    if "vllm:external_prefix_cache_hits" in sums.by_family:
        remarks.append(
            "external prefix cache hits are all that the KV connector loaded, exact or not: no proof of reuse"
        )
    if "sglang:cached_tokens" in sums.by_family:
        remarks.append("SGLang's cached tokens are exact and other hits together: no proof of semantic reuse")
    lost = sums.by_family.get("semblend_audit_dropped")
    if lost:
        remarks.append(f"{lost:.0f} audit records were lost in this window: counts from that stream are lower bounds")
    return remarks
