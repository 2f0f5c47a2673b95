"""What an engine's steps take: timed, learned, kept, and compared with what was predicted."""

from semblend_core.costs.cost_file import CostFile
from semblend_core.costs.judgements import Judgement, Judgements
from semblend_core.costs.lookups import Lookup, Lookups
from semblend_core.costs.step_clock import Step, StepClock
from semblend_core.costs.step_times import StepTimes
from semblend_core.costs.steps import Part, StepShape
from semblend_core.costs.trials import Trials

__all__ = [
    "CostFile",
    "Judgement",
    "Judgements",
    "Lookup",
    "Lookups",
    "Part",
    "Step",
    "StepClock",
    "StepShape",
    "StepTimes",
    "Trials",
]
