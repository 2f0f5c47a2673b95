"""Whether this model's keys have been proved to move: until then plans are found, and not loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from semblend_core.contract import DeclineReason


class SelfTest:
    """Every rank tests itself, on the first prompts that the engine computes. One failure is enough to stop."""

    def __init__(self, ranks: int, stop: Callable[[str], None]) -> None:
        """``stop``: told why nothing may be loaded, for good."""
        self._waiting = set(range(ranks))
        self._stop = stop
        self.failed = False

    @property
    def passed(self) -> bool:
        return not self._waiting and not self.failed

    @property
    def wants_prompts(self) -> bool:
        """Whether it is still open, so that prompts are read for it that nobody wants to keep."""
        return bool(self._waiting) and not self.failed

    @property
    def why_not(self) -> DeclineReason | None:
        """Why nothing is loaded; None where it may be."""
        if self.passed:
            return None
        return DeclineReason.SELF_TEST_FAILED if self.failed else DeclineReason.SELF_TEST_PENDING

    def hear(self, results: Iterable[tuple[int, str]]) -> bool:
        """What ranks found: an empty text, or why it failed. Whether the test has passed with it."""
        before = self.passed
        for rank, failure in results:
            self._waiting.discard(rank)
            if failure:
                self.fail(failure)
        return self.passed and not before

    def fail(self, why: str) -> None:
        self.failed = True
        self._stop(why)
