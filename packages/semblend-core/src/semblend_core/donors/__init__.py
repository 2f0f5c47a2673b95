"""Donors: the registry with its budgets and pins."""

from semblend_core.donors.registry import DonorRecord, DonorRegistry
from semblend_core.donors.regret import Regret

__all__ = [
    "DonorRecord",
    "DonorRegistry",
    "Regret",
]
