"""What an adapter's self-test has found so far."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SelfTestState(StrEnum):
    """Whether this engine's KV can be moved. Each is a label of the self-test's gauge."""

    PENDING = "pending"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    state: SelfTestState
    says: str = ""
    """What was measured, in one sentence; of a failure, why."""
    final: bool = True
    """False: later prompts may still change it."""

    @classmethod
    def refused(cls, why: str) -> SelfTestResult:
        """A failure that no prompt can change."""
        return cls(SelfTestState.FAILED, why)

    @property
    def passed(self) -> bool:
        return self.state is SelfTestState.PASSED

    @property
    def failed(self) -> bool:
        return self.state is SelfTestState.FAILED
