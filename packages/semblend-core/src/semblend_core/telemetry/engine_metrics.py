"""What adapters export with their engine's own metrics, by field of ``ProviderStats``: its name and meaning."""

from __future__ import annotations

from semblend_core.contract import SelfTestState

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
ENGINE_STATES = {
    "self_test": ("semblend_self_test", "1 for the state that the self-test is in.", "state", SelfTestState),
}
"""Gauges with one series for each state, by the label that names it: 1 for the state at hand, 0 for the others.

So the sum over an engine's processes says how many of them are in a state.
"""
