"""What could be reused, worked out from tokens alone: no engine runs, and nothing is said about reuse that happened."""

from sembench.offline.blocks import BlockMetrics, count_exact_prefix, measure_blocks
from sembench.offline.replay import OfflineRun, replay_offline

__all__ = ["BlockMetrics", "OfflineRun", "count_exact_prefix", "measure_blocks", "replay_offline"]
