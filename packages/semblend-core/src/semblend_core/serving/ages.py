"""How old donors are, and what each tenant holds of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass

from semblend_core.contract import TenantReport, tenant_of
from semblend_core.serving.prefixes import DonorName
from semblend_core.settings import Settings


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator allows. None: no limit."""

    max_age_s: float | None = None
    tenant_tokens: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(settings.max_age_s, settings.tenant_tokens)


@dataclass(frozen=True, slots=True)
class _Age:
    born: float
    tokens: int


class DonorAges:
    """Donors by their age: all of them, and those of each tenant. Some come late, as an earlier process left them."""

    def __init__(self) -> None:
        self._ages: dict[DonorName, _Age] = {}
        self._by_age: list[tuple[float, DonorName]] = []
        """The oldest first. Most come in this order, so they are put at the end."""
        self._by_tenant: dict[str, dict[DonorName, int]] = {}
        """With their tokens."""
        self._tokens: Counter[str] = Counter()
        """Of each tenant's donors together."""

    def add(self, name: DonorName, tokens: int, born: float) -> None:
        self._ages[name] = _Age(born, tokens)
        insort(self._by_age, (born, name))
        tenant = tenant_of(name[0])
        self._by_tenant.setdefault(tenant, {})[name] = tokens
        self._tokens[tenant] += tokens

    def remove(self, name: DonorName) -> None:
        age = self._ages.pop(name, None)
        if age is None:
            return
        del self._by_age[bisect_left(self._by_age, (age.born, name))]
        tenant = tenant_of(name[0])
        self._tokens[tenant] -= self._by_tenant[tenant].pop(name)
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant], self._tokens[tenant]

    def born(self, name: DonorName) -> float | None:
        age = self._ages.get(name)
        return None if age is None else age.born

    def born_before(self, moment: float) -> DonorName | None:
        """The oldest, if it came before ``moment``."""
        born, name = self._by_age[0] if self._by_age else (moment, None)
        return name if born < moment else None

    def oldest_of(self, tenant: str) -> DonorName | None:
        return min(self._by_tenant.get(tenant, ()), key=lambda name: self._ages[name].born, default=None)

    def names_of(self, tenant: str) -> list[DonorName]:
        return list(self._by_tenant.get(tenant, ()))

    def tokens_of(self, tenant: str) -> int:
        return self._tokens.get(tenant, 0)

    def report(self, tenant: str, now: float) -> TenantReport:
        oldest = self.oldest_of(tenant)
        return TenantReport(
            donors=len(self._by_tenant.get(tenant, ())),
            tokens=self.tokens_of(tenant),
            oldest_s=None if oldest is None else max(0.0, now - self._ages[oldest].born),
        )
