"""From request records to a result, and from results to verdicts."""

from sembench.results.aggregate import build_result

__all__ = ["build_result"]
