"""Whether this model's keys have been proved to move: until then plans are found, and not loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from semblend_core.contract import DeclineReason, SelfTestResult


class SelfTest:
    """Every rank tests itself, on the prompts that the engine computes. One failure is enough to stop."""

    def __init__(self, ranks: int, note: Callable[[SelfTestResult], None]) -> None:
        """``ranks``: how many have something to prove. ``note``: the provider's, for the log and the gauge."""
        self._ranks, self._note = ranks, note
        self._results: dict[int, SelfTestResult] = {}
        """By rank, once it has said something."""

    @property
    def passed(self) -> bool:
        return len(self._results) == self._ranks and all(result.passed for result in self._results.values())

    @property
    def failed(self) -> bool:
        return any(result.failed for result in self._results.values())

    @property
    def wants_prompts(self) -> bool:
        """Whether prompts are read for it that nobody wants to keep. After a failure only donors are looked at."""
        return not self.passed and not self.failed

    @property
    def why_not(self) -> DeclineReason | None:
        """Why nothing is loaded; None where it may be."""
        if self.passed:
            return None
        return DeclineReason.SELF_TEST_FAILED if self.failed else DeclineReason.SELF_TEST_PENDING

    def hear(self, results: Mapping[int, SelfTestResult]) -> bool:
        """What ranks found. Whether the test has passed with it."""
        before = self.passed
        self._results |= results
        for result in results.values():
            if result.failed or self.passed:
                self._note(result)
        return self.passed and not before

    def refuse(self, why: str) -> None:
        """Nothing is loaded from now on, whatever prompts show."""
        self.hear({0: SelfTestResult.refused(why)})
