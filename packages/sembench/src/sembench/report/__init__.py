"""One self-contained HTML page from results."""

from sembench.report.page import write_report

__all__ = ["write_report"]
