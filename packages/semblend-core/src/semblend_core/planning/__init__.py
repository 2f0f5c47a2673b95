"""Planning: the cover's gates, the cost gate and the data they use."""

from semblend_core.planning.cost import CostModel
from semblend_core.planning.layer_profile import LayerProfile, LayerProfileError
from semblend_core.planning.planner import Planner

__all__ = ["CostModel", "LayerProfile", "LayerProfileError", "Planner"]
