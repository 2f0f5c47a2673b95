"""What a pytest run did: its exit code, and the JUnit file it wrote."""

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

NO_TESTS_COLLECTED = 5  # pytest's exit code


@dataclass(frozen=True)
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def collected(self) -> int:
        return self.passed + self.failed + self.skipped

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
        )

    def __str__(self) -> str:
        words = f"{self.passed} passed, {self.failed} failed"
        return f"{words}, {self.skipped} skipped" if self.skipped else words


def read_counts(report: Path) -> Counts:
    """Errors (a broken fixture, a module that does not import) count as failures."""
    total = Counts()
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        tests = int(suite.get("tests", 0))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        total += Counts(max(0, tests - failed - skipped), failed, skipped)
    return total
