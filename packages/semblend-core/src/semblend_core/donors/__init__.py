"""Donors: the registry with its budgets and pins, and the eviction policies."""

from semblend_core.donors.registry import DonorRecord, DonorRegistry

__all__ = [
    "DonorRecord",
    "DonorRegistry",
]
