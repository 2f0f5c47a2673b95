"""Prompts, metrics and pages of the quality study."""
