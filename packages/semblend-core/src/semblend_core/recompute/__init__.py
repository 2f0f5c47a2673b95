"""What to compute afresh of what could be reused: policies, their budgets and the three quality tiers."""

from semblend_core.recompute.policies import (
    FullRecompute,
    KVDeviation,
    Oracle,
    QueryAttention,
    Random,
    RotateOnly,
    SeamAndTail,
    SeamHead,
    SharedSink,
)
from semblend_core.recompute.policy import (
    Corrected,
    MeanShift,
    Pooling,
    Probe,
    Recompute,
    RecomputePolicy,
    Scores,
    Selection,
)
from semblend_core.recompute.reuse import Reuse
from semblend_core.recompute.tiers import ROW_SHIFT, TierChoice, choose_policy

__all__ = [
    "ROW_SHIFT",
    "Corrected",
    "FullRecompute",
    "KVDeviation",
    "MeanShift",
    "Oracle",
    "Pooling",
    "Probe",
    "QueryAttention",
    "Random",
    "Recompute",
    "RecomputePolicy",
    "Reuse",
    "RotateOnly",
    "Scores",
    "SeamAndTail",
    "SeamHead",
    "Selection",
    "SharedSink",
    "TierChoice",
    "choose_policy",
]
