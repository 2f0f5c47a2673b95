"""What the per-model self-test found: figures, verdict, and for which engine, model and layout it holds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from semblend_core.__about__ import __version__

FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestIdentity:
    """Everything a result depends on. Two subjects with equal identities must give equal results."""

    engine: str
    engine_version: str
    model: str
    revision: str
    device: str
    """The kind of device that computes: a cache folder may be shared between hosts."""
    dtype: str
    """Storage type of the KV cache."""
    kv_layout: str
    """How KV lies in memory, with whatever else of the engine's setup decides how KV is moved."""
    semblend_version: str = __version__

    @property
    def digest(self) -> str:
        """Names the cached result; equal in every process."""
        encoded = json.dumps(asdict(self), sort_keys=True).encode()
        return hashlib.blake2b(encoded, digest_size=16, person=b"semblend-selftst").hexdigest()


@dataclass(frozen=True, slots=True)
class SelfTestCheck:
    """One check: a measured error against what is tolerated."""

    name: str
    measured: float | None
    """The error found; None where the check could not be carried out or the error is not a number."""
    tolerance: float
    passed: bool
    detail: str = ""
    """What was compared; for a check that could not be carried out, why."""

    @property
    def finding(self) -> str:
        if self.measured is None:
            return f"{self.name}: {self.detail}"
        return f"{self.name}: {self.measured:.1e} against {self.tolerance:.1e} tolerated"


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """The verdict. KV is materialised only where every check passed."""

    identity: SelfTestIdentity | None
    """None where the subject could not even say what it is; such a report is never cached."""
    checks: tuple[SelfTestCheck, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def conclusive(self) -> bool:
        """Whether every check was carried out. A report that is not says nothing of the next start."""
        return all(check.measured is not None for check in self.checks)

    @property
    def mode(self) -> Literal["materialize", "discovery_only"]:
        return "materialize" if self.passed else "discovery_only"

    @property
    def reason(self) -> str | None:
        """Why KV may not be materialised, for ``restrict_to_discovery`` and the log; None if it may."""
        if self.passed:
            return None
        failed = [check.finding for check in self.checks if not check.passed]
        return "self-test failed: " + ("; ".join(failed) or "it ran no check")

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``; ``from_json`` reads them back."""
        return {
            "format": FORMAT,
            "identity": None if self.identity is None else asdict(self.identity),
            "mode": self.mode,
            "reason": self.reason,
            "checks": [asdict(check) for check in self.checks],
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, stored: Any) -> SelfTestReport:
        """The report that ``as_json`` wrote. Raises ValueError, TypeError or KeyError for anything else."""
        if stored["format"] != FORMAT:
            raise ValueError(f"self-test report of format {stored['format']!r}, expected {FORMAT}")
        checks = tuple(_checked(SelfTestCheck(**check)) for check in stored["checks"])
        identity = None if stored["identity"] is None else SelfTestIdentity(**stored["identity"])
        report = cls(identity, checks, float(stored["seconds"]))
        if report.mode != stored["mode"]:
            raise ValueError("the stored verdict contradicts the stored checks")
        return report


def _checked(check: SelfTestCheck) -> SelfTestCheck:
    """A stored check is believed only if its figures bear it out."""
    if check.passed != (check.measured is not None and check.measured <= check.tolerance):
        raise ValueError(f"the stored check {check.name!r} contradicts its own figures")
    return check
