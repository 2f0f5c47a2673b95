"""Eviction policies: who goes when a budget is full. One interface for whole donors and for blocks of prompts."""

from semblend_core.eviction.leaves_first import LeavesFirst
from semblend_core.eviction.named import POLICY_NAMES, policy_named
from semblend_core.eviction.policy import START_WEIGHTS, Entry, EvictionPolicy

__all__ = [
    "POLICY_NAMES",
    "START_WEIGHTS",
    "Entry",
    "EvictionPolicy",
    "LeavesFirst",
    "policy_named",
]
