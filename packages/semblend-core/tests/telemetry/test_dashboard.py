"""The dashboard asks for metrics that exist, by the labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semblend_core import ENGINE_COUNTERS, ENGINE_GAUGES, ENGINE_LABELLED_COUNTERS, ENGINE_STATES
from semblend_core.telemetry.quality_metrics import COMPARISONS, HISTOGRAM_LABELS, QUALITY_HISTOGRAMS, SPENDING

DASHBOARD = Path(__file__).resolve().parents[4] / "docs" / "grafana" / "semblend.json"
OF_ENGINES = {"vllm:time_to_first_token_seconds_bucket", "sglang:time_to_first_token_seconds_bucket"}
"""The engines' own, which their adapters' tests look for."""
pytestmark = pytest.mark.skipif(not DASHBOARD.is_file(), reason="the docs are only in a checkout")


def series() -> dict[str, set[str]]:
    """Every series that an engine exports for SemBlend, with its labels."""
    known: dict[str, set[str]] = {f"{name}_total": set() for name, _ in ENGINE_COUNTERS.values()}
    known |= {f"{name}_total": {label} for name, _, label in (*ENGINE_LABELLED_COUNTERS.values(), COMPARISONS)}
    known |= {name: set() for name, _ in ENGINE_GAUGES.values()}
    known |= {name: {label} for name, _, label, _ in ENGINE_STATES.values()}
    known |= {SPENDING[0]: {SPENDING[2]}}
    for name, _, _ in QUALITY_HISTOGRAMS.values():
        known |= {f"{name}_{part}": set(HISTOGRAM_LABELS) for part in ("sum", "count")}
        known[f"{name}_bucket"] = {*HISTOGRAM_LABELS, "le"}
    return known


def questions() -> Iterator[str]:
    def inside(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            yield from (part[name] for name in ("expr", "definition") if isinstance(part.get(name), str))
        for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            yield from inside(each)

    return inside(json.loads(DASHBOARD.read_text()))


def test_every_metric_of_the_dashboard_exists() -> None:
    asked = {name for question in questions() for name in re.findall(r"\b(?:semblend_|vllm:|sglang:)\w+", question)}
    assert asked <= series().keys() | OF_ENGINES
    assert asked > OF_ENGINES


def test_every_label_of_the_dashboard_exists() -> None:
    for question in questions():
        names = re.findall(r"\bsemblend_\w+", question)
        known = {"job", "le"}.union(*(series()[name] for name in names))
        used = {label for group in re.findall(r"by \(([^)]*)\)", question) for label in group.split(", ")}
        used |= set(re.findall(r"(\w+)=~?\"", question))
        assert used <= known, question


def test_it_shows_every_metric_of_the_guard() -> None:
    text = " ".join(questions())
    assert all(
        name in text for name in (COMPARISONS[0], SPENDING[0], *(name for name, *_ in QUALITY_HISTOGRAMS.values()))
    )


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
