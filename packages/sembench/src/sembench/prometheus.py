"""An engine's Prometheus counters: one scrape kept as it was, what two of them differ in, and the rates made of that.

A counter never falls. One that did, or whose process started anew, was reset in between, and nothing can be said of
it: its delta is None and the window says so. A series that was not there before has counted from 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Literal

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict

from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.identity import now
from sembench.schema import InputError, Rate
from semblend_core import ENGINE_COUNTERS, ENGINE_LABELLED_COUNTERS


class Sample(BaseModel):
    """One series and its value; None where the engine wrote NaN or an infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    labels: dict[str, str]
    type: str
    """counter, gauge, histogram, summary or unknown, as the exposition declares the family."""
    value: float | None


class EngineSnapshot(BaseModel):
    """All series of one endpoint at one moment."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.engine-snapshot.v1"] = "sembench.engine-snapshot.v1"
    url: str
    taken_at: str
    """UTC, ISO 8601."""
    time: float
    """Unix seconds."""
    samples: list[Sample]


def take_snapshot(url: str, timeout_s: float = 10.0) -> EngineSnapshot:
    """Scrape ``url``. Raises InputError with exit code 3 where it does not answer with metrics."""
    try:
        response = httpx.get(url, timeout=timeout_s, follow_redirects=True, headers={"Accept": "text/plain"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"--url {url}: {error or type(error).__name__}; is the engine up?", REFUSED_OUTSIDE) from None
    if response.status_code != 200:
        hint = "; metrics may have to be switched on" if response.status_code == 404 else ""
        raise InputError(f"--url {url}: answered with status {response.status_code}{hint}", REFUSED_OUTSIDE)
    samples = parse_metrics(response.text, f"--url {url}")
    return EngineSnapshot(url=url, taken_at=now(), time=time.time(), samples=samples)


def parse_metrics(text: str, where: str) -> list[Sample]:
    """The series of a Prometheus text exposition, in its order."""
    samples: list[Sample] = []
    try:
        for family in text_string_to_metric_families(text):
            for name, labels, value, *_ in family.samples:
                known = float(value) if math.isfinite(value) else None
                samples.append(Sample(name=name, labels=labels, type=family.type, value=known))
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise InputError(f"{where}: not a Prometheus text exposition: {error}", REFUSED_OUTSIDE) from None
    if not samples:
        raise InputError(f"{where}: holds no metrics; is it the /metrics address?", REFUSED_OUTSIDE)
    return samples


_Series = tuple[str, tuple[tuple[str, str], ...]]


class Delta(BaseModel):
    """One series. ``delta`` is None where it was reset or a value is missing; ``note`` says which."""

    model_config = ConfigDict(extra="forbid")

    name: str
    labels: dict[str, str]
    before: float | None
    after: float | None
    delta: float | None
    note: str | None = None


class EngineWindow(BaseModel):
    """Counters and histograms between two snapshots, and the rates made of them."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.engine-window.v1"] = "sembench.engine-window.v1"
    url: str
    before: str
    after: str
    seconds: float
    resets: list[str] = []
    """Series that were reset; every figure that needs one of them is None."""
    totals: dict[str, float | None] = {}
    """Per counter, the sum over its label sets; per family that is told apart by a label, one entry per value."""
    rates: dict[str, Rate] = {}
    remarks: list[str] = []
    deltas: list[Delta] = []


def compare_snapshots(before: EngineSnapshot, after: EngineSnapshot) -> EngineWindow:
    """Raises InputError where the two are not an earlier and a later look at the same endpoint."""
    if before.url != after.url:
        raise InputError(f"--before is of {before.url}, --after of {after.url}: take both from the same address")
    if after.time < before.time:
        raise InputError("--after was taken before --before: swap the two files")
    earlier = {_series(sample): sample for sample in before.samples if _counts(sample)}
    later = {_series(sample): sample for sample in after.samples if _counts(sample)}
    restarted = _restarted(before.samples, after.samples)
    deltas = [_delta(earlier.get(series), later.get(series), restarted) for series in dict.fromkeys([*earlier, *later])]
    totals, rates, remarks = _derive_rates(deltas)
    if restarted:
        remarks.insert(0, "the engine's process was started anew between the snapshots: no counter can be compared")
    return EngineWindow(
        url=before.url,
        before=before.taken_at,
        after=after.taken_at,
        seconds=after.time - before.time,
        resets=[_written(delta) for delta in deltas if delta.note == "reset"],
        totals=totals,
        rates=rates,
        remarks=remarks,
        deltas=[delta for delta in deltas if delta.delta != 0],
    )


def _series(sample: Sample) -> _Series:
    return sample.name, tuple(sorted(sample.labels.items()))


def _counts(sample: Sample) -> bool:
    """Whether the series only ever rises."""
    if sample.name.endswith("_created"):
        return False
    if sample.type in ("counter", "histogram"):
        return True
    return sample.type in ("summary", "unknown") and sample.name.endswith(("_total", "_count", "_sum"))


def _restarted(before: Iterable[Sample], after: Iterable[Sample]) -> bool:
    """Whether a process that was there before has another start time now."""
    name = "process_start_time_seconds"
    earlier = {_series(sample): sample.value for sample in before if sample.name == name}
    return any(sample.name == name and earlier.get(_series(sample)) not in (None, sample.value) for sample in after)


def _delta(before: Sample | None, after: Sample | None, restarted: bool) -> Delta:
    told = after or before
    assert told is not None
    old, new = before.value if before else None, after.value if after else None
    delta, note = _difference(before, after, old, new)
    if restarted and delta is not None:
        delta, note = None, "reset"
    return Delta(name=told.name, labels=told.labels, before=old, after=new, delta=delta, note=note)


def _difference(
    before: Sample | None, after: Sample | None, old: float | None, new: float | None
) -> tuple[float | None, str | None]:
    if after is None:
        return None, "reset"  # a series that vanishes belongs to a process that is gone
    if before is None:
        return new, "new"
    if old is None or new is None:
        return None, "not a number"
    return (new - old, None) if new >= old else (None, "reset")


def _written(delta: Delta) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(delta.labels.items()))
    return f"{delta.name}{{{labels}}}" if labels else delta.name


_RATES = (
    ("vllm_external_prefix_cache_hit_rate", "vllm:external_prefix_cache_hits", "vllm:external_prefix_cache_queries"),
    ("vllm_prefix_cache_hit_rate", "vllm:prefix_cache_hits", "vllm:prefix_cache_queries"),
    ("vllm_ttft_seconds_mean", "vllm:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_count"),
    ("sglang_cached_token_rate", "sglang:cached_tokens", "sglang:prompt_tokens"),
    ("sglang_ttft_seconds_mean", "sglang:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_count"),
    ("semblend_plan_rate", ENGINE_COUNTERS["plans"][0], ENGINE_COUNTERS["lookups"][0]),
)
"""Name, numerator, denominator. Counters are named without ``_total``, which exporters may leave away."""
_DIVIDED = {
    "vllm:prompt_tokens_by_source": "source",
    "sglang:cached_tokens": "cache_source",
    **{metric: label for metric, _, label in ENGINE_LABELLED_COUNTERS.values()},
}
"""Families that are told apart by a label."""
_SHARES = (
    ("vllm:prompt_tokens_by_source", "vllm_prompt_tokens_from"),
    (ENGINE_LABELLED_COUNTERS["outcomes"][0], "semblend_outcome"),
)
"""A divided family, and what the shares of its parts are called."""
_KEPT = (
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:num_preemptions",
    "sglang:generation_tokens",
    "sglang:num_requests",
    *(metric for metric, _ in ENGINE_COUNTERS.values()),
)


class _Sums:
    """Deltas added up by family, and by label value where a family is divided. One reset makes its sum None."""

    def __init__(self, deltas: Iterable[Delta]) -> None:
        self.by_family: dict[str, float | None] = {}
        self.by_value: dict[str, dict[str, float | None]] = {}
        for told in deltas:
            family = told.name.removesuffix("_total")
            self.by_family[family] = _added(self.by_family.get(family, 0.0), told.delta)
            label = _DIVIDED.get(family)
            if label is not None:
                parts = self.by_value.setdefault(family, {})
                value = told.labels.get(label, "unlabelled")
                parts[value] = _added(parts.get(value, 0.0), told.delta)


def _derive_rates(deltas: Iterable[Delta]) -> tuple[dict[str, float | None], dict[str, Rate], list[str]]:
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
    for family, prefix in _SHARES:
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
    return remarks
