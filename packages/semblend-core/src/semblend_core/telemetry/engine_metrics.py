"""What adapters export with their engine's own metrics, by field of ``ProviderStats``: its name and meaning."""

from __future__ import annotations

from typing import Any

from semblend_core.contract import ProviderStats

ENGINE_COUNTERS = {
    "lookups": ("semblend_lookups", "Requests that were looked up."),
    "plans": ("semblend_plans", "Lookups that ended in a plan: a finding, not reuse."),
    "confirmed_tokens": ("semblend_confirmed_tokens", "Tokens of relocated KV that landed and were used."),
    "evicted_donors": ("semblend_evicted_donors", "Donors that are gone."),
}
ENGINE_LABELLED_COUNTERS = {
    "outcomes": ("semblend_outcomes", "Requests by how they ended.", "outcome"),
    "declines": ("semblend_declines", "Requests and donors that were declined, by reason.", "reason"),
}
"""With the label that tells their series apart."""
ENGINE_GAUGES = {"donors": ("semblend_donors", "Donors that can be found.")}


def growth_of(before: ProviderStats, after: ProviderStats) -> dict[str, Any]:
    """What the counters have grown by, with their labels' values as text. One that counts backwards has not grown."""
    grown: dict[str, Any] = {name: max(0, getattr(after, name) - getattr(before, name)) for name in ENGINE_COUNTERS}
    for name in ENGINE_LABELLED_COUNTERS:
        known = getattr(before, name)
        grown[name] = {
            str(value): count - known.get(value, 0)
            for value, count in getattr(after, name).items()
            if count > known.get(value, 0)
        }
    return grown
