"""What is said of one tenant: all who send the same salt."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class TenantReport:
    """What SemBlend holds for a tenant, or what a purge took from it."""

    donors: int = 0
    """Prompts that can be found, and those that an earlier process left on disk."""
    tokens: int = 0
    """Of these prompts."""
    stored: int = 0
    """Donors whose KV is in the donor store, or on its way there."""
    bytes: int = 0
    """Of their KV, in all tiers."""
    lineages: int = 0
    """Names of KV that was computed behind relocated KV."""
    captures: int = 0
    """Prompts whose KV is being copied."""
    openings: int = 0
    """Openings that wait to be computed exactly."""
    comparisons: int = 0
    """Requests that wait to be compared with their cold answers."""
    oldest_s: float | None = None
    """Age of the oldest donor; None: there is none."""

    @property
    def nothing(self) -> bool:
        waiting = self.captures or self.openings or self.comparisons
        return not (self.donors or self.stored or self.bytes or self.lineages or waiting)

    def as_dict(self) -> dict[str, int | float | None]:
        return asdict(self)

    def __add__(self, other: TenantReport) -> TenantReport:
        ages = [age for age in (self.oldest_s, other.oldest_s) if age is not None]
        return TenantReport(
            donors=self.donors + other.donors,
            tokens=self.tokens + other.tokens,
            stored=self.stored + other.stored,
            bytes=self.bytes + other.bytes,
            lineages=self.lineages + other.lineages,
            captures=self.captures + other.captures,
            openings=self.openings + other.openings,
            comparisons=self.comparisons + other.comparisons,
            oldest_s=max(ages, default=None),
        )
