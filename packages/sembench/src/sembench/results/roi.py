"""Whether reuse pays: what hits gain, what misses cost, and the hit rate at which the two are even."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sembench.exit_codes import REFUSED_BY_FIGURES
from sembench.results.paired import CleanPair, find_clean_pairs
from sembench.results.records import confirmed_tokens, records_in
from sembench.schema import InputError, Interval, Rate, Result

RESAMPLES = 2000
MS_PER_HOUR = 3_600_000.0


class Roi(BaseModel):
    """All times are of TTFT, in milliseconds per request; money is in the unit that the prices are in."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.roi.v1"] = "sembench.roi.v1"
    gain_ms: Interval
    """Mean of cold minus warm over the hits."""
    miss_tax_ms: Interval
    """Mean of warm minus cold over the misses, negative controls among them. Negative: noise, misses cost nothing."""
    pairs_left_out: int
    """Clean pairs of which nothing says whether KV landed, controls for which some did, and exact prefixes."""
    break_even_hit_rate: Interval
    """Where gain and tax are even: tax / (tax + gain); None where hits gain nothing."""
    hit_rate: Rate
    """Measured on the pairs that are no controls, or as assumed: then without its two parts."""
    net_ms_per_request: Interval
    """At that hit rate: hit_rate * gain - (1 - hit_rate) * tax."""
    tokens_saved_per_hit: float
    tokens_saved_per_request: float
    prompt_tokens_per_request: float | None
    gpu_cost_saved_per_1000_requests: float | None = None
    prefill_cost_saved_per_1000_requests: float | None = None


@dataclass(frozen=True)
class Prices:
    """What a user pays; each is used alone, because both price the same saving."""

    prefill_per_1k_tokens: float | None = None
    gpu_hour: float | None = None


def return_on_reuse(result: Result, prices: Prices | None = None, hit_rate: float | None = None) -> Roi:
    """Raises InputError (exit code 1) that names the figure which is missing."""
    prices = prices or Prices()
    pairs = _pairs(result)
    blended = [pair for pair in pairs if not pair.cold.negative_control]
    hits = [pair for pair in blended if pair.is_hit]
    misses = [pair for pair in pairs if pair.is_miss]
    _require(pairs, blended, hits, misses)
    gains = np.array([pair.cold_ttft_ms - pair.warm_ttft_ms for pair in hits])
    taxes = np.array([pair.warm_ttft_ms - pair.cold_ttft_ms for pair in misses])
    rate = (
        Rate.of(len(hits), len(blended)) if hit_rate is None else Rate(value=hit_rate, numerator=None, denominator=None)
    )
    assert rate.value is not None
    net, break_even = _with_intervals(gains, taxes, rate.value)
    per_hit = float(np.mean([confirmed_tokens(pair.warm) or 0 for pair in hits]))
    saved = per_hit * rate.value
    lengths = [pair.warm.prompt_tokens for pair in blended if pair.warm.prompt_tokens is not None]
    return Roi(
        gain_ms=_mean_interval(gains),
        miss_tax_ms=_mean_interval(taxes),
        pairs_left_out=len(pairs) - len(hits) - len(misses),
        break_even_hit_rate=break_even,
        hit_rate=rate,
        net_ms_per_request=net,
        tokens_saved_per_hit=per_hit,
        tokens_saved_per_request=saved,
        prompt_tokens_per_request=float(np.mean(lengths)) if lengths else None,
        gpu_cost_saved_per_1000_requests=_gpu_cost(net.value, prices.gpu_hour),
        prefill_cost_saved_per_1000_requests=(
            None if prices.prefill_per_1k_tokens is None else saved * prices.prefill_per_1k_tokens
        ),
    )


def _pairs(result: Result) -> list[CleanPair]:
    return find_clean_pairs(records_in(result))[0]


def _require(
    pairs: Sequence[CleanPair], blended: Sequence[CleanPair], hits: Sequence[CleanPair], misses: Sequence[CleanPair]
) -> None:
    missing = None
    if not pairs:
        missing = "no clean pair of a cold and a warm request: run with --paired, or merge two runs"
    elif not blended:
        missing = "no pair that is not a negative control"
    elif all(confirmed_tokens(pair.warm) is None for pair in pairs):
        missing = "no backend event says which requests reused KV: run with --connector-audit"
    elif not hits:
        missing = "no pair with confirmed reuse, so what a hit gains is not known"
    elif not misses:
        missing = "no pair without reuse, so what a miss costs is not known: add negative controls to the manifest"
    if missing:
        raise InputError(f"--result: {missing}", REFUSED_BY_FIGURES)


def break_even_rate(gain_ms: float, tax_ms: float) -> float | None:
    """The least hit rate that does not lose time. 0 where misses cost nothing, None where hits gain nothing."""
    if gain_ms <= 0:
        return None
    return max(0.0, tax_ms) / (max(0.0, tax_ms) + gain_ms)


def net_ms(gain_ms: float, tax_ms: float, hit_rate: float) -> float:
    return hit_rate * gain_ms - (1 - hit_rate) * tax_ms


def _resampled_means(values: np.ndarray, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(0, values.size, (RESAMPLES, values.size))
    means: np.ndarray = values[drawn].mean(axis=1)
    return means


def _mean_interval(values: np.ndarray) -> Interval:
    """The mean, not the median: costs add up, and medians do not."""
    if values.size < 2:
        return Interval(value=float(values.mean()), n=values.size)
    low, high = _tails(_resampled_means(values, seed=0))
    return Interval(value=float(values.mean()), low=low, high=high, n=values.size)


def _with_intervals(gains: np.ndarray, taxes: np.ndarray, hit_rate: float) -> tuple[Interval, Interval]:
    """Net time and break-even rate. Hits and misses are resampled each on their own, so both need two pairs."""
    gain, tax, pairs = float(gains.mean()), float(taxes.mean()), int(gains.size + taxes.size)
    net = Interval(value=net_ms(gain, tax, hit_rate), n=pairs)
    even = Interval(value=break_even_rate(gain, tax), n=pairs)
    if min(gains.size, taxes.size) < 2:
        return net, even
    drawn = list(zip(_resampled_means(gains, seed=0), _resampled_means(taxes, seed=1), strict=True))
    net.low, net.high = _tails([net_ms(*each, hit_rate) for each in drawn])
    if even.value is not None:
        # A draw in which hits gain nothing has no break-even below 1.
        rates = (break_even_rate(*each) for each in drawn)
        even.low, even.high = _tails([1.0 if rate is None else rate for rate in rates])
    return net, even


def _tails(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)


def _gpu_cost(net: float | None, gpu_hour: float | None) -> float | None:
    return None if net is None or gpu_hour is None else 1000 * net * gpu_hour / MS_PER_HOUR
