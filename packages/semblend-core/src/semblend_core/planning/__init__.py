"""Planning: the cover's gates and the cost gate."""

from semblend_core.planning.cost import CostModel
from semblend_core.planning.planner import Planner

__all__ = ["CostModel", "Planner"]
