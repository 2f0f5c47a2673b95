"""What the evidence thread did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvidenceStats:
    """Counters since start; the last five are gauges."""

    indexed: int = 0
    answered: int = 0
    dropped_offers: int = 0
    """Not taken: queue full, closed or disabled."""
    dropped_asks: int = 0
    over_budget: int = 0
    """Offers left out because the vectors had reached ``max_index_bytes``."""
    forgotten: int = 0
    failures: int = 0
    """Tasks that raised, such as a detokenizer's error. The task is lost, nothing else."""
    expired_answers: int = 0
    queued: int = 0
    answers: int = 0
    donors: int = 0
    index_bytes: int = 0
    disabled: str | None = None
    """Why there is no evidence any more, such as a model that did not load; None while all is well."""
