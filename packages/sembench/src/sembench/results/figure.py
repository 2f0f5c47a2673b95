"""A figure as a gate meets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """A figure, as it is printed with what it is made of; ``missing`` says why there is none."""

    value: float | None
    shown: str
    missing: str | None = None
    at_least: float | None = None
    """Where the figure is not known: what it cannot be below."""
    source: str = "result"
    remark: str = ""
    """What explains a figure that is too low."""
