"""The one way in which the reference engine says no to a model."""

from __future__ import annotations


class UnsupportedModelError(ValueError):
    """A model that the reference engine cannot run correctly. The message says what about it, and what helps."""
