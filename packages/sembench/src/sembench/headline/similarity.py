"""How alike two prompts are, by their words alone: no model decides into which band a request falls."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

from sembench.schema import ManifestItem

MEASURE = "cosine of the counts of three words in a row, between a recipient and the donor most like it"
_WORD = re.compile(r"\w+")
"""Marks are left out: a line of dashes would outweigh a page of text."""
_RUN = 3
"""Single words would make any two English texts alike: most of a text is the same few hundred."""
BANDS = (
    (0.9, "0.90 to 1.00"),
    (0.8, "0.80 to 0.90"),
    (0.7, "0.70 to 0.80"),
    (0.6, "0.60 to 0.70"),
    (0.5, "0.50 to 0.60"),
    (0.0, "below 0.50"),
)


def similarity_band(item: ManifestItem) -> str:
    """The band of the published tables; a composite of several donors is as alike as the best of them."""
    found = measure_similarity(item)
    return next(name for least, name in BANDS if found >= least)


def measure_similarity(item: ManifestItem) -> float:
    recipient = _count_runs(item.recipient_prompt)
    return max((_cosine(recipient, _count_runs(donor.text)) for donor in item.donor_prompts), default=0.0)


def _count_runs(text: str) -> Counter[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return Counter(zip(*(words[start:] for start in range(_RUN)), strict=False))


def _cosine(first: Mapping[tuple[str, ...], int], second: Mapping[tuple[str, ...], int]) -> float:
    if not first or not second:
        return 0.0
    shared = sum(count * second.get(run, 0) for run, count in first.items())
    return shared / math.sqrt(sum(n * n for n in first.values()) * sum(n * n for n in second.values()))
