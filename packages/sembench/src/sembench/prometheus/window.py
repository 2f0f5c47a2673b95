"""What the counters did between two snapshots.

A counter never falls. One that did, or whose process started anew, was reset in between, and nothing can be said of
it: its delta is None and the window says so. A series that was not there before has counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sembench.prometheus.rates import derived_rates
from sembench.prometheus.snapshot import EngineSnapshot, Sample
from sembench.schema import InputError, Rate

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


def window_between(before: EngineSnapshot, after: EngineSnapshot) -> EngineWindow:
    """Raises InputError where the two are not an earlier and a later look at the same endpoint."""
    if before.url != after.url:
        raise InputError(f"--before is of {before.url}, --after of {after.url}: take both from the same address")
    if after.time < before.time:
        raise InputError("--after was taken before --before: swap the two files")
    earlier = {_series(sample): sample for sample in before.samples if _counts(sample)}
    later = {_series(sample): sample for sample in after.samples if _counts(sample)}
    restarted = _restarted(before.samples, after.samples)
    deltas = [_delta(earlier.get(series), later.get(series), restarted) for series in dict.fromkeys([*earlier, *later])]
    totals, rates, remarks = derived_rates((delta.name, delta.labels, delta.delta) for delta in deltas)
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
