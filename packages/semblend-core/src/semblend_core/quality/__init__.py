"""How far served answers stray from cold ones, and what is done about it."""

from semblend_core.quality.controller import STEPS, QualityController
from semblend_core.quality.divergence import Divergence, Scored, divergence
from semblend_core.quality.evidence import Evidence
from semblend_core.quality.kinds import KINDS, kind_of

__all__ = ["KINDS", "STEPS", "Divergence", "Evidence", "QualityController", "Scored", "divergence", "kind_of"]
