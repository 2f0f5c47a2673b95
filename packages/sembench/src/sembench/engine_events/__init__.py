"""What engines say of themselves: logs and audit streams, read into one summary."""

from sembench.engine_events.kubectl import collect_logs
from sembench.engine_events.summary import ENGINES, summarize

__all__ = ["ENGINES", "collect_logs", "summarize"]
