"""Host memory that holds nothing of what was there before.

The allocator hands freed memory out again as it was left. What a purged tenant wrote would then lie in the unused part
of a new buffer, out of reach of the purge.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor


def clean_bytes(size: int, *, pinned: bool) -> Tensor:
    """``size`` bytes, all 0. Plain pages are only committed when they are first written."""
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True).zero_()
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
