"""Load: how throughput and latency change with concurrency, arrival rate and the share of reuse."""

from sembench.load.point import LoadPoint, Percentiles

__all__ = ["LoadPoint", "Percentiles"]
