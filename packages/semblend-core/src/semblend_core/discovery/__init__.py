"""Finding what can be reused: fingerprints, the span index, verified runs and the cover of a prompt."""

from semblend_core.discovery.cover import best_cover
from semblend_core.discovery.donor_choice import MOST_PIECES, FoundRuns
from semblend_core.discovery.fingerprint import Geometry, Hashes
from semblend_core.discovery.runs import Run
from semblend_core.discovery.span_index import ISLAND_GRAM, PreparedDonor, SpanIndex

__all__ = [
    "ISLAND_GRAM",
    "MOST_PIECES",
    "FoundRuns",
    "Geometry",
    "Hashes",
    "PreparedDonor",
    "Run",
    "SpanIndex",
    "best_cover",
]
