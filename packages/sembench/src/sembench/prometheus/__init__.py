"""An engine's Prometheus counters before and after a run, and what happened between."""

from sembench.prometheus.snapshot import EngineSnapshot, Sample, parse_metrics, take_snapshot
from sembench.prometheus.window import EngineWindow, window_between

__all__ = ["EngineSnapshot", "EngineWindow", "Sample", "parse_metrics", "take_snapshot", "window_between"]
