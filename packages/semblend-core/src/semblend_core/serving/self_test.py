"""Whether this model's keys have been proved to move: until then plans are found, and not loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from semblend_core.contract import DeclineReason, SelfTestResult, SelfTestState


class SelfTest:
    """Every rank tests itself, on the prompts that the engine computes. One failure is enough to stop."""

    def __init__(self, ranks: int, note: Callable[[SelfTestResult], None], *, required: bool = True) -> None:
        """``ranks``: how many have something to prove. ``note``: the provider's, for the log and the gauge.

        ``required``: nothing is loaded before all have proved it. An engine that turns no keys needs no proof, and
        heeds a failure all the same: it tells that the pool is read wrongly.
        """
        self._ranks, self._note, self._required = ranks, note, required
        self._results: dict[int, SelfTestResult] = {}
        """By rank, once it has said something."""

    @property
    def passed(self) -> bool:
        """Whether what was found may be loaded."""
        if not self._required:
            return not self.failed
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
        before = self._together()
        self._results |= {rank: result for rank, result in results.items() if not self._is_final(rank)}
        now = self._together()
        if now != before:
            self._note(now)
        return now.passed and not before.passed

    def refuse(self, why: str) -> None:
        """Nothing is loaded from now on, whatever prompts show."""
        self.hear({0: SelfTestResult.refused(why)})

    def _together(self) -> SelfTestResult:
        """What all ranks' results come to: the gravest failure, or that one is still silent, or that all passed."""
        results = sorted(self._results.values(), key=lambda result: (not result.failed, not result.final))
        if results and (results[0].failed or self.passed):
            return results[0]
        return SelfTestResult(SelfTestState.PENDING, final=False)

    def _is_final(self, rank: int) -> bool:
        """Whether the rank has failed for good: a prompt that agrees later changes nothing."""
        known = self._results.get(rank)
        return known is not None and known.failed and known.final
