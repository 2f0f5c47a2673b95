"""How old donors are, and what each tenant holds of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _Donors:
    by_age: list[tuple[float, DonorName]] = field(default_factory=list)
    """The oldest first. Most come in this order, so they are put at the end."""
    tokens: int = 0
    """Of all together."""

    @property
    def oldest(self) -> DonorName | None:
        return self.by_age[0][1] if self.by_age else None

    def add(self, name: DonorName, age: _Age) -> None:
        insort(self.by_age, (age.born, name))
        self.tokens += age.tokens

    def remove(self, name: DonorName, age: _Age) -> None:
        del self.by_age[bisect_left(self.by_age, (age.born, name))]
        self.tokens -= age.tokens


_NONE = _Donors()


class DonorAges:
    """Donors by their age: all of them, and those of each tenant. Some come late, as an earlier process left them."""

    def __init__(self) -> None:
        self._ages: dict[DonorName, _Age] = {}
        self._all = _Donors()
        self._by_tenant: dict[str, _Donors] = {}

    def add(self, name: DonorName, tokens: int, born: float) -> None:
        age = self._ages[name] = _Age(born, tokens)
        self._all.add(name, age)
        self._by_tenant.setdefault(tenant_of(name[0]), _Donors()).add(name, age)

    def remove(self, name: DonorName) -> None:
        age = self._ages.pop(name, None)
        if age is None:
            return
        self._all.remove(name, age)
        tenant = tenant_of(name[0])
        self._by_tenant[tenant].remove(name, age)
        if not self._by_tenant[tenant].by_age:
            del self._by_tenant[tenant]

    def born(self, name: DonorName) -> float | None:
        age = self._ages.get(name)
        return None if age is None else age.born

    def born_before(self, moment: float) -> DonorName | None:
        """The oldest, if it came before ``moment``."""
        oldest = self._all.oldest
        return oldest if oldest is not None and self._ages[oldest].born < moment else None

    def oldest_of(self, tenant: str) -> DonorName | None:
        return self._of(tenant).oldest

    def names_of(self, tenant: str) -> list[DonorName]:
        """The youngest first: in this order they are quick to remove."""
        return [name for _, name in reversed(self._of(tenant).by_age)]

    def tokens_of(self, tenant: str) -> int:
        return self._of(tenant).tokens

    def report(self, tenant: str, now: float) -> TenantReport:
        theirs = self._of(tenant)
        return TenantReport(
            donors=len(theirs.by_age),
            tokens=theirs.tokens,
            oldest_s=None if theirs.oldest is None else max(0.0, now - self._ages[theirs.oldest].born),
        )

    def _of(self, tenant: str) -> _Donors:
        return self._by_tenant.get(tenant, _NONE)
