"""Donors: the registry with its budgets and pins."""

from semblend_core.donors.registry import DonorRecord, DonorRegistry

__all__ = [
    "DonorRecord",
    "DonorRegistry",
]
