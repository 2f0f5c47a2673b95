"""What is known about one setting besides its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semblend_core.settings.kinds import Kind

PREFIX = "SEMBLEND_"


@dataclass(frozen=True)
class Declaration:
    """One setting: how its variable is called, what it may be and what it does."""

    field: str
    """Name in ``Settings``."""
    default: Any
    kind: Kind
    doc: str
    """One sentence."""
    unit: str
    """What a number counts, such as ``"tokens"``; empty for shares, words and sizes (always bytes)."""
    group: str
    """Section of the reference page."""

    @property
    def variable(self) -> str:
        return PREFIX + self.field.upper()
